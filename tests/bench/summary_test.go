package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		of   []float64
		want float64
	}{
		{[]float64{7}, 7},
		{[]float64{3, 1, 2}, 2},
		{[]float64{8, 2}, 5},
		{[]float64{9, 1, 3, 2}, 2.5},
		{[]float64{5, 4, 1, 2, 30}, 4},
	} {
		before := slices.Clone(c.of)
		if got := median(c.of); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.of, got, c.want)
		}
		if !slices.Equal(c.of, before) {
			t.Errorf("the values have become %v, they were %v", c.of, before)
		}
	}
}

func TestPercentileIsTheNearestRank(t *testing.T) {
	for _, c := range []struct{ answers, p, want int }{
		{0, 50, 0},
		{1, 1, 1}, {1, 50, 1}, {1, 99, 1},
		{2, 50, 1}, {2, 51, 2},
		{3, 50, 2},
		{10, 50, 5}, {10, 90, 9}, {10, 91, 10}, {10, 99, 10},
		{100, 99, 99}, {100, 100, 100},
		{200, 99, 198}, {201, 99, 199},
	} {
		o := outcome{}
		for i := range c.answers { // 1, 2, 3 ... ms
			o.latency = append(o.latency, time.Duration(i+1)*time.Millisecond)
		}
		if got := o.percentile(c.p); got != time.Duration(c.want)*time.Millisecond {
			t.Errorf("p%d of %d answers: %v, want %d ms", c.p, c.answers, got, c.want)
		}
	}
}

func TestReached(t *testing.T) {
	for _, c := range []struct {
		bar   *bar
		value float64
		want  string
	}{
		{atMost(1.5, 1.3), 1.29, "goal"}, {atMost(1.5, 1.3), 1.3, "goal"}, {atMost(1.5, 1.3), 1.31, "must"},
		{atMost(1.5, 1.3), 1.5, "must"}, {atMost(1.5, 1.3), 1.51, "missed"},
		{atLeast(2.5, 4), 4.1, "goal"}, {atLeast(2.5, 4), 4, "goal"}, {atLeast(2.5, 4), 3.9, "must"},
		{atLeast(2.5, 4), 2.5, "must"}, {atLeast(2.5, 4), 2.4, "missed"},
		{atMost(0, 0), 0, "goal"}, {atMost(0, 0), 1, "missed"},
	} {
		if got := c.bar.reached(c.value); got != c.want {
			t.Errorf("%v, by %v: %s, want %s", c.value, c.bar, got, c.want)
		}
	}
}

// made are figures of two rounds. What differs from the plain cells is what the summary
// takes, so that a figure out of another cell shows.
func made() *figures {
	f := &figures{cells: map[where][]cell{}, floor: map[string][]float64{}, direct: map[string][]directCell{}}
	for _, side := range []string{"raw", "shm", "uint8", "peer"} {
		for _, cost := range costsMS {
			for _, n := range loads {
				for range 2 {
					c := cell{
						perSecond: 1, p50: 1, p99: 1, session: 0.1, pss: 300,
						cpu: map[string]float64{gatewayPart: 7, tritonPart: 1, modelPart: 1}, rss: map[string]float64{gatewayPart: 100, tritonPart: 5000},
					}
					if side == "peer" {
						c.cpu, c.rss, c.pss = map[string]float64{peerPart: 9}, map[string]float64{peerPart: 5000}, 200
					}
					f.cells[where{side, cost, n}] = append(f.cells[where{side, cost, n}], c)
				}
			}
		}
	}
	set := func(side, cost string, n int, change func(c *cell, v float64), rounds ...float64) {
		for i, v := range rounds {
			change(&f.cells[where{side, cost, n}][i], v)
		}
	}
	gateway := func(c *cell, v float64) { c.cpu[gatewayPart] = v }
	speed := func(c *cell, v float64) { c.perSecond = v }
	resident := func(c *cell, v float64) { c.rss[gatewayPart] = v }

	set("raw", "1", 64, gateway, 2, 4)
	set("shm", "1", 8, gateway, 1, 2)
	set("shm", "1", 32, gateway, 1.1, 2.4)
	set("shm", "1", 64, gateway, 1, 2.4)
	set("shm", "1", 256, gateway, 1.2, 3)
	set("shm", "1", 64, func(c *cell, v float64) { c.cpu[modelPart] = v }, 1, 1.6)
	set("uint8", "1", 64, gateway, 0.9, 1.1)
	set("peer", "1", 64, func(c *cell, v float64) { c.cpu[peerPart] = v }, 6, 5)
	set("peer", "1", 64, func(c *cell, v float64) { c.session = v }, 1, 0.2)
	set("shm", "1", 64, speed, 100, 120)
	set("uint8", "1", 64, speed, 90, 80)
	set("peer", "1", 64, speed, 50, 80)
	set("shm", "1", 1, func(c *cell, v float64) { c.p50 = v }, 5, 7)
	set("shm", "1", 1, func(c *cell, v float64) { c.p99 = v }, 9, 12)
	set("shm", "0", 256, resident, 100, 300)
	set("shm", "1", 256, resident, 200, 100)
	set("shm", "5", 256, resident, 150, 150)
	set("shm", "5", 256, func(c *cell, v float64) { c.pss = v }, 500, 700)
	failed := func(c *cell, v float64) { c.errors = v }
	set("raw", "5", 1024, failed, 0, 2)
	set("peer", "0", 8, failed, 1, 0)

	f.floor = map[string][]float64{
		"http": {0.1, 0.2}, "base64": {0.1, 0.1}, "inflate": {0.2, 0.4},
		"unfilter": {0.1, 0.1}, "table": {0.05, 0.05}, "numbers": {0.05, 0.15},
	}
	f.direct["shm"] = []directCell{{cpu: 0.2, p50: 3, p99: 6}, {cpu: 0.6, p50: 4, p99: 10}}
	f.direct["raw"] = []directCell{{cpu: 1, p50: 90, p99: 90}, {cpu: 3, p50: 90, p99: 90}}
	f.rna = [2][]float64{{2, 4}, {2.2, 5}}
	f.mask = []float64{0.4, 0.6}
	f.batches = []float64{40, 46}
	return f
}

func TestSummary(t *testing.T) {
	want := map[string]struct {
		value   float64
		reached string
	}{
		"floor_http":                       {0.15, ""},
		"floor_base64":                     {0.1, ""},
		"floor_inflate":                    {0.3, ""},
		"floor_unfilter":                   {0.1, ""},
		"floor_table":                      {0.05, ""},
		"floor_numbers":                    {0.1, ""},
		"floor_infer_raw":                  {2, ""},
		"floor_infer_shm":                  {0.4, ""},
		"floor":                            {1.2, ""},       // 0.8 and 1.6
		"floor_ratio":                      {1.375, "must"}, // 1 / 0.8 = 1.25 and 2.4 / 1.6 = 1.5
		"gateway_cpu_ms_per_tile_64_raw":   {3, "missed"},   // 2 and 4
		"gateway_cpu_ms_per_tile_64":       {1.7, "must"},   // 1 and 2.4
		"peer_frontend_cpu_ms_per_tile_64": {4.9, ""},       // 6 - 1 and 5 - 0.2
		"frontend_cpu_ratio_64":            {3.5, "must"},   // 5 / 1 and 4.8 / 2.4
		"stack_cpu_ratio_64":               {1.5, ""},       // 6 / (1 + 1 + 1) and 5 / (2.4 + 1 + 1.6)
		"stack_tiles_ratio_64":             {1.75, "must"},  // 100 / 50 and 120 / 80
		"stack_tiles_ratio_64_uint8":       {1.4, "missed"}, // 90 / 50 and 80 / 80
		"gateway_cpu_ms_per_tile_64_uint8": {1, ""},         // 0.9 and 1.1
		"added_p50_ms_1":                   {2.5, "goal"},   // 5 - 3 and 7 - 4
		"added_p99_ms_1":                   {2.5, ""},       // 9 - 6 and 12 - 10
		"rna_ratio":                        {1.175, "must"}, // 2.2 / 2 and 5 / 4
		"mask_encode_ms":                   {0.5, "goal"},   // 0.4 and 0.6
		"rss_mb_256":                       {250, "must"},   // the most of 100, 200, 150 and of 300, 100, 150
		"pss_mb_256_stack":                 {600, ""},       // 500 and 700
		"pss_mb_256_peer":                  {200, ""},       //
		"rss_mb_1024":                      {100, "goal"},   //
		"pss_mb_1024_stack":                {300, ""},       //
		"pss_mb_1024_peer":                 {200, ""},       //
		"cpu_spread_8_to_256":              {0.4, "missed"}, // medians: 1.5, 1.75, 1.7, 2.1
		"mean_batch_256":                   {43, "missed"},  // 40 and 46
		"errors":                           {1.5, "missed"}, // 1 and 2
	}
	for _, got := range made().summary() {
		line, ok := want[got.name]
		if !ok {
			t.Errorf("%s is in the summary once more, or has no figure here", got.name)
			continue
		}
		delete(want, got.name)
		reached := ""
		if got.bar != nil {
			reached = got.bar.reached(median(got.values))
		}
		if m := median(got.values); math.Abs(m-line.value) > 1e-9 || reached != line.reached {
			t.Errorf("%s: %v, %q, want %v, %q", got.name, m, reached, line.value, line.reached)
		}
	}
	for name := range want {
		t.Errorf("%s is not in the summary", name)
	}
}

// The transport that costs the gateway less is the one that is judged, with its own floor.
func TestSummaryTakesTheBestTransport(t *testing.T) {
	f := made()
	f.cells[where{"raw", "1", 64}][0].cpu[gatewayPart] = 0.8
	f.cells[where{"raw", "1", 64}][1].cpu[gatewayPart] = 1.5
	for _, got := range f.summary() {
		switch got.name {
		case "gateway_cpu_ms_per_tile_64": // 0.8 and 1.5, where shared memory has 1 and 2.4
			if m := median(got.values); math.Abs(m-1.15) > 1e-9 {
				t.Errorf("%s: %v, want 1.15", got.name, m)
			}
		case "floor": // 0.8 - 0.2 + 1 and 1.6 - 0.6 + 3
			if m := median(got.values); math.Abs(m-2.8) > 1e-9 {
				t.Errorf("%s: %v, want 2.8", got.name, m)
			}
		}
	}
}

func TestReport(t *testing.T) {
	var text strings.Builder
	made().write(&text, 2)
	for _, line := range []string{
		"| shm | 64 | 110 ± 10 | 1.0 | 0.0 | 1.0 | 1.70 | 1.00 | 1.30 | 0.00 | 100 | 300 | 0.0 | 0 |\n",
		"| peer | 64 | 65 ± 15 | 1.0 | 0.0 | 1.0 | 4.90 | 0.00 | 0.60 | 0.00 | 5000 | 200 | 0.0 | 0 |\n",
		"| frontend_cpu_ratio_64 | 3.5 | 2 | 5 | x | at least 2.5, goal 4 | must |\n",
		"| errors | 1.5 | 1 | 2 |  | at most 0, goal 0 | missed |\n",
		"    bench floor_ratio 1.375 x\n",
	} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("the report lacks %q", line)
		}
	}
}
