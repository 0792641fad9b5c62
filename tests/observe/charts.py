"""Draws what TestQueriesFindData has kept of the dashboard's panels, as a Grafana would.

    python charts.py build/observe.json charts.png

It is for a person to look at, and needs matplotlib, which no test does.
"""

import json
import re
import sys

from matplotlib import pyplot

COLUMNS = 4


def main(source, target):
    with open(source, encoding="utf-8") as file:
        panels = [p for p in json.load(file) if p["Type"] != "table"]
    rows = -(-len(panels) // COLUMNS)
    figure, axes = pyplot.subplots(rows, COLUMNS, figsize=(7 * COLUMNS, 3.6 * rows), squeeze=False)
    began = min(v[0] for p in panels for line in p["Lines"] for s in line["Series"] or [] for v in s["values"])
    for axis, panel in zip(axes.flat, panels, strict=False):
        axis.set_title(f"{panel['Title']} [{panel['Unit']}]", fontsize=10)
        for line in panel["Lines"]:
            for series in line["Series"] or []:
                legend = re.sub(r"{{(\w+)}}", lambda m, of=series["metric"]: of.get(m[1], ""), line["Legend"])
                times = [v[0] - began for v in series["values"]]
                axis.plot(times, [float(v[1]) for v in series["values"]], label=legend.strip() or "none", linewidth=1)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=6, loc="upper left")
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    figure.savefig(target, dpi=80)


if __name__ == "__main__":
    main(*sys.argv[1:])
