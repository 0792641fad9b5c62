package prep

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"unicode/utf8"
)

// ListFiles are the files that the spec keeps lists in, each once.
func (s *Spec) ListFiles() []string {
	files := []string{s.InputGenesFile, s.OutputGenesFile}
	for _, in := range s.Inputs {
		for _, t := range in.Transforms {
			files = append(files, t.MeanFile, t.StdFile, t.IndicesFile)
		}
	}
	slices.Sort(files)
	return slices.DeleteFunc(slices.Compact(files), func(name string) bool { return name == "" })
}

// ReadLists parses the lists that the spec keeps in files of their own, each read by
// its name, and holds all lists against the shapes.
func (s *Spec) ReadLists(read func(name string) ([]byte, error)) error {
	identifier := func(text string) (string, error) { return text, nil }
	number := func(text string) (float64, error) { return strconv.ParseFloat(text, 64) }
	errs := []error{
		readList(read, "input_genes_file", s.InputGenesFile, &s.InputGenes, identifier),
		readList(read, "output_genes_file", s.OutputGenesFile, &s.OutputGenes, identifier),
	}
	for i := range s.Inputs {
		for j := range s.Inputs[i].Transforms {
			t := &s.Inputs[i].Transforms[j]
			field := fmt.Sprintf("inputs[%d].transforms[%d].", i, j)
			errs = append(errs,
				readList(read, field+"mean_file", t.MeanFile, &t.Mean, number),
				readList(read, field+"std_file", t.StdFile, &t.Std, number),
				readList(read, field+"indices_file", t.IndicesFile, &t.Indices, strconv.Atoi))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return s.checkLists()
}

// ReadFile reads a regular file of a folder. Another kind is refused before it is
// opened: a FIFO could wait for ever, a device never end.
func ReadFile(folder fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(folder, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file; put one in its place")}
	}
	return fs.ReadFile(folder, name)
}

// readList reads a CSV file of one column with a header. No name is no file.
func readList[T any](read func(string) ([]byte, error), field, name string, list *[]T, parse func(string) (T, error)) error {
	if name == "" {
		return nil
	}
	fail := func(err error) error { return fmt.Errorf("%s: %s: %w", field, name, err) }
	text, err := read(name)
	if err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	if !utf8.Valid(text) {
		return fail(errors.New("not a text in UTF-8; save it as a plain CSV file"))
	}
	column := csv.NewReader(bytes.NewReader(text))
	column.FieldsPerRecord = 1
	if _, err := column.Read(); err != nil { // the header
		if errors.Is(err, io.EOF) {
			err = errors.New("empty; a header is expected, and a value a line")
		}
		return fail(err)
	}
	for {
		record, err := column.Read()
		switch {
		case errors.Is(err, io.EOF) && len(*list) == 0:
			return fail(errors.New("holds a header and no values"))
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fail(err)
		}
		value, err := parse(record[0])
		if err != nil {
			line, _ := column.FieldPos(0)
			return fail(fmt.Errorf("line %d: %w", line, err))
		}
		*list = append(*list, value)
	}
}

// checkLists finds every list that does not fit a shape or contradicts itself.
func (s *Spec) checkLists() error {
	var c checker
	c.genes("input_genes", s.InputGenes)
	c.genes("output_genes", s.OutputGenes)
	if i := s.bulkRNAInput(); i >= 0 {
		in := &s.Inputs[i]
		length := s.BulkRNALength()
		for j := range in.Transforms {
			length = in.Transforms[j].checkLists(&c, fmt.Sprintf("inputs[%d].transforms[%d]", i, j), length)
		}
		c.require(length == Elements(in.Shape), fmt.Sprintf("inputs[%d].shape", i),
			"%v is not what %d input genes become: %d values%s", in.Shape, s.BulkRNALength(), length, headerOf(s.InputGenesFile))
	}
	if out, ok := s.Output(PredictionRole); ok && s.OutputGenes != nil {
		c.require(len(s.OutputGenes) == Elements(out.Shape), "output_genes", "%d genes for the %d values of the prediction%s",
			len(s.OutputGenes), Elements(out.Shape), headerOf(s.OutputGenesFile))
	}
	return c.err()
}

// headerOf reminds of what a file lacks most often.
func headerOf(file string) string {
	if file == "" {
		return ""
	}
	return fmt.Sprintf("; the first line of %s is taken for its header, so it must have one", file)
}

// genes refuses a gene without a name and one that is listed twice.
func (c *checker) genes(field string, genes []string) {
	c.require(!slices.Contains(genes, ""), field, "must not hold an empty name")
	seen := make(map[string]int, len(genes))
	for i, gene := range genes {
		if first, ok := seen[gene]; ok {
			c.require(false, field, "%q is both number %d and number %d", gene, first, i)
			return
		}
		seen[gene] = i
	}
}

// BulkRNALength is how many values a request's bulk_rna has.
func (s *Spec) BulkRNALength() int {
	if s.InputGenes != nil {
		return len(s.InputGenes)
	}
	return Elements(s.Inputs[s.bulkRNAInput()].Shape)
}
