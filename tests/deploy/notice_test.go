package deploy

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// licences tells the licences that may be linked into a program under Apache-2.0 by what
// stands in their texts, white space apart.
var licences = map[string][]string{
	"Apache-2.0":   {"Apache License", "Version 2.0"},
	"BSD-2-Clause": {"Redistribution and use in source and binary forms"},
	"BSD-3-Clause": {"Redistribution and use in source and binary forms", "either the name"},
	"ISC":          {"Permission to use, copy, modify, and/or distribute this software for any purpose"},
	"MIT":          {"Permission is hereby granted, free of charge", "shall be included in all copies"},
	"MIT-0":        {"MIT No Attribution"},
}

// licencesOf are those whose texts are in a module's folder.
func licencesOf(t *testing.T, folder string) string {
	t.Helper()
	var text string
	for _, path := range filesIn(t, folder, "LICEN[CS]E*", "COPYING*") {
		text += read(t, path) + "\n"
	}
	text = strings.Join(strings.Fields(text), " ")
	var names []string
	for name, marks := range licences {
		if !slices.ContainsFunc(marks, func(mark string) bool { return !strings.Contains(text, mark) }) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if slices.Contains(names, "BSD-3-Clause") { // whose text holds that of the other
		names = slices.DeleteFunc(names, func(name string) bool { return name == "BSD-2-Clause" })
	}
	for _, other := range []string{"GNU GENERAL PUBLIC", "GNU LESSER", "GNU AFFERO", "Mozilla Public", "Server Side Public", "Business Source"} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(other)) {
			t.Errorf("%s is under another licence, too: %s", folder, other)
		}
	}
	return strings.Join(names, ", ")
}

func filesIn(t *testing.T, folder string, patterns ...string) (paths []string) {
	t.Helper()
	for _, pattern := range patterns {
		found, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, found...)
	}
	return paths
}

// section are the rows of a part of NOTICE, between its heading and the next text, each
// cut into its columns.
func section(t *testing.T, heading string) (rows [][]string) {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, "NOTICE"), "\n"+heading)
	if !ok {
		t.Fatalf("NOTICE has no part %q", heading)
	}
	_, rest, _ = strings.Cut(rest, "\n\n")
	table, _, _ := strings.Cut(rest, "\n\n")
	for line := range strings.Lines(table) {
		rows = append(rows, regexp.MustCompile(` {2,}`).Split(strings.TrimSpace(line), -1))
	}
	return rows
}

// compare reports what NOTICE lacks, and what it has without need.
func compare(t *testing.T, where string, want []string, rows [][]string) {
	t.Helper()
	var got []string
	for _, row := range rows {
		got = append(got, strings.Join(row, "  "))
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("%s: NOTICE lacks the line\n  %s", where, line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("%s: NOTICE has a line that is not so:\n  %s", where, line)
		}
	}
}

// Every module in the binary is in NOTICE with its version and the licence that lies with
// it, which is one that may be linked; what a module's own NOTICE says is repeated, as
// Apache-2.0 asks. What a licence means is for people: this reads no more than its name.
func TestNoticeOfModules(t *testing.T) {
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}", "./gateway/cmd/gateway")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	slices.Sort(lines)
	var want []string
	notice := strings.Join(strings.Fields(read(t, "NOTICE")), " ")
	for _, line := range slices.Compact(lines) {
		module := strings.Fields(line) // path, version, folder
		names := licencesOf(t, module[2])
		if names == "" {
			t.Errorf("%s is under none of the licences that are known here to fit", module[0])
		}
		want = append(want, module[0]+"  "+module[1]+"  "+names)
		for _, path := range filesIn(t, module[2], "NOTICE*") {
			if text := strings.Join(strings.Fields(read(t, path)), " "); !strings.Contains(notice, module[0]+" "+text) {
				t.Errorf("what %s says is not in NOTICE", path)
			}
		}
	}
	if len(want) < 10 {
		t.Fatalf("the binary has hardly any modules: %q", want)
	}
	compare(t, "Go modules", want, section(t, "Go modules"))
}

// Every library that the binary asks the system for is there with the version of Debian's
// package. Their licences were read in /usr/share/doc, whose files have no common form.
func TestNoticeOfLibraries(t *testing.T) {
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sonames, err := file.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	rows := section(t, "Libraries that the binary is linked with")
	for _, soname := range sonames {
		i := slices.IndexFunc(rows, func(row []string) bool { return row[0] == soname })
		if i < 0 {
			t.Errorf("%s is not in NOTICE", soname)
			continue
		}
		owner, err := exec.Command("dpkg-query", "-S", "*/"+soname).Output()
		if err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(string(owner), ": ")
		version, err := exec.Command("dpkg-query", "-W", "-f", "${source:Upstream-Version}", name).Output()
		if err != nil {
			t.Fatal(err)
		}
		if upstream := strings.TrimSuffix(string(version), ".dfsg"); upstream != rows[i][2] {
			t.Errorf("%s is of version %s, not %s as NOTICE has it", soname, upstream, rows[i][2])
		}
	}
	if len(rows) != len(sonames) {
		t.Errorf("NOTICE has %d libraries, the binary %q", len(rows), sonames)
	}
}

// Every Python package that an image has for Triton's backend is there. Their licences
// were read in their metadata; the packages of torch are not on every machine.
func TestNoticeOfPythonPackages(t *testing.T) {
	var want []string
	rows := section(t, "Python packages in the processes of Triton's backend")
	for _, path := range []string{"requirements.txt", "requirements-pt2.txt"} {
		for _, match := range regexp.MustCompile(`(?m)^([\w-]+)==(\S+)`).FindAllStringSubmatch(read(t, "deploy/triton/"+path), -1) {
			line := match[1] + "  " + match[2]
			if match[1] == "pillow" || slices.Contains(want, line) { // the reference's alone; numpy is in both
				continue
			}
			want = append(want, line)
		}
	}
	for i, row := range rows {
		if len(row) != 3 || row[2] == "" {
			t.Errorf("no licence in %q", row)
		}
		rows[i] = row[:2]
	}
	compare(t, "Python packages", want, rows)
}
