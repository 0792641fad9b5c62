package main

import (
	"fmt"
	"slices"
)

// figure is one line of the summary.
type figure struct {
	name   string
	values []float64 // one of each round
	unit   string
	bar    *bar // nil where nothing is asked of it
}

// bar is what a figure must reach, and what it is to reach.
type bar struct {
	must, goal float64
	most       bool // else it is the least
}

func atMost(must, goal float64) *bar  { return &bar{must, goal, true} }
func atLeast(must, goal float64) *bar { return &bar{must, goal, false} }

// reached is the better of the two that a value reaches.
func (b *bar) reached(value float64) string {
	passes := func(limit float64) bool { return value == limit || (value < limit) == b.most }
	switch {
	case passes(b.goal):
		return "goal"
	case passes(b.must):
		return "must"
	default:
		return "missed"
	}
}

func (b *bar) String() string {
	sign := "at least"
	if b.most {
		sign = "at most"
	}
	return fmt.Sprintf("%s %g, goal %g", sign, b.must, b.goal)
}

// judged is the model's cost that the bars are for, in milliseconds a tile.
const judged = "1"

// of are the values of a cell, one of each round.
func (f *figures) of(side, cost string, inFlight int, value func(cell) float64) (values []float64) {
	for _, c := range f.cells[where{side, cost, inFlight}] {
		values = append(values, value(c))
	}
	return values
}

func gatewayCPU(c cell) float64 { return c.cpu[gatewayPart] }
func perSecond(c cell) float64  { return c.perSecond }

// byRound makes one figure of several, round by round.
func byRound(combine func(values []float64) float64, of ...[]float64) (values []float64) {
	for i := range of[0] {
		var round []float64
		for _, figure := range of {
			round = append(round, figure[i])
		}
		values = append(values, combine(round))
	}
	return values
}

func ratio(values []float64) float64  { return values[0] / values[1] }
func excess(values []float64) float64 { return values[0] - values[1] }
func spread(values []float64) float64 { return slices.Max(values)/slices.Min(values) - 1 }
func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// summary are the figures that the stack is judged by.
func (f *figures) summary() (list []figure) {
	best := "raw"
	if median(f.of("shm", judged, 64, gatewayCPU)) < median(f.of("raw", judged, 64, gatewayCPU)) {
		best = "shm"
	}
	ours := f.of(best, judged, 64, gatewayCPU)
	add := func(name, unit string, b *bar, values []float64) { list = append(list, figure{name, values, unit, b}) }

	floors := [][]float64{f.directOf(best, func(d directCell) float64 { return d.cpu })}
	for _, part := range floorNames {
		add("floor_"+part, "ms", nil, f.floor[part])
		floors = append(floors, f.floor[part])
	}
	for _, transport := range []string{"raw", "shm"} {
		add("floor_infer_"+transport, "ms", nil, f.directOf(transport, func(d directCell) float64 { return d.cpu }))
	}
	least := byRound(sum, floors...)
	add("floor", "ms", nil, least)
	add("floor_ratio", "x", atMost(1.5, 1.3), byRound(ratio, ours, least))
	add("gateway_cpu_ms_per_tile_64_raw", "ms", atMost(2.7, 2.0), f.of("raw", judged, 64, gatewayCPU))
	add("gateway_cpu_ms_per_tile_64", "ms", atMost(2.2, 1.6), ours)
	frontend := f.of("peer", judged, 64, func(c cell) float64 { return c.cpu[peerPart] - c.session })
	add("peer_frontend_cpu_ms_per_tile_64", "ms", nil, frontend)
	add("frontend_cpu_ratio_64", "x", atLeast(2.5, 4), byRound(ratio, frontend, ours))
	whole := func(c cell) float64 { return total(c.cpu) }
	add("stack_cpu_ratio_64", "x", nil, byRound(ratio, f.of("peer", judged, 64, whole), f.of(best, judged, 64, whole)))
	add("stack_tiles_ratio_64", "x", atLeast(1.4, 2), byRound(ratio, f.of(best, judged, 64, perSecond), f.of("peer", judged, 64, perSecond)))
	add("stack_tiles_ratio_64_uint8", "x", atLeast(1.7, 2.5), byRound(ratio, f.of("uint8", judged, 64, perSecond), f.of("peer", judged, 64, perSecond)))
	add("gateway_cpu_ms_per_tile_64_uint8", "ms", nil, f.of("uint8", judged, 64, gatewayCPU))
	p50, p99 := func(c cell) float64 { return c.p50 }, func(c cell) float64 { return c.p99 }
	add("added_p50_ms_1", "ms", atMost(4, 2.5), byRound(excess, f.of(best, judged, 1, p50), f.directOf(best, func(d directCell) float64 { return d.p50 })))
	add("added_p99_ms_1", "ms", nil, byRound(excess, f.of(best, judged, 1, p99), f.directOf(best, func(d directCell) float64 { return d.p99 })))
	add("rna_ratio", "x", atMost(1.25, 1.1), byRound(ratio, f.rna[1], f.rna[0]))
	add("mask_encode_ms", "ms", atMost(1, 0.5), f.mask)
	for _, n := range []int{256, 1024} {
		var gateway, whole, python [][]float64
		for _, cost := range costsMS {
			gateway = append(gateway, f.of(best, cost, n, func(c cell) float64 { return c.rss[gatewayPart] }))
			whole = append(whole, f.of(best, cost, n, func(c cell) float64 { return c.pss }))
			python = append(python, f.of("peer", cost, n, func(c cell) float64 { return c.pss }))
		}
		b := atMost(250, 150)
		if n == 1024 {
			b = atMost(600, 400)
		}
		add(fmt.Sprintf("rss_mb_%d", n), "MB", b, byRound(slices.Max, gateway...))
		add(fmt.Sprintf("pss_mb_%d_stack", n), "MB", nil, byRound(slices.Max, whole...))
		add(fmt.Sprintf("pss_mb_%d_peer", n), "MB", nil, byRound(slices.Max, python...))
	}
	// Of the medians: of a round's four figures the most over the least is what noise makes it.
	var flat []float64
	for _, n := range []int{8, 32, 64, 256} {
		flat = append(flat, median(f.of(best, judged, n, gatewayCPU)))
	}
	add("cpu_spread_8_to_256", "of 1", atMost(0.2, 0.1), []float64{spread(flat)})
	add("mean_batch_256", "tiles", atLeast(0.9*48, 0.9*48), f.batches)
	var errors [][]float64
	for at := range f.cells {
		errors = append(errors, f.of(at.side, at.cost, at.inFlight, func(c cell) float64 { return c.errors }))
	}
	add("errors", "", atMost(0, 0), byRound(sum, errors...))
	return list
}

// floorNames are the parts of the floor but for the way to Triton.
var floorNames = []string{"http", "base64", "inflate", "unfilter", "table", "numbers"}

func (f *figures) directOf(transport string, value func(directCell) float64) (values []float64) {
	for _, d := range f.direct[transport] {
		values = append(values, value(d))
	}
	return values
}
