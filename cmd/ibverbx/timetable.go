package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"ibverbx/cmd/ibverbx/internal/bench"
)

const (
	// mostTimeRows is how many rows the intervals of a time line are put into at most; two more
	// stand for what was before and behind them.
	mostTimeRows = 12
	// aroundDip is how many intervals are shown on their own before and behind a dip.
	aroundDip = 3
	// leastIntervals is how many a time line has at least that is shown.
	leastIntervals = 3
	// timeWidth is the width of a row without the rails, timeRemarks that of what happened in it.
	timeWidth, timeRemarks = 23, 22
)

// timeRow is a row of the table: the intervals from first on, up to end.
type timeRow struct{ first, end int }

// timeline writes the bandwidth over time, in detail around the faults, and what they did to it.
func (t *perfTable) timeline(line *bench.Timeline) {
	rows := timeRowsOf(line, t.verbose)
	if len(line.Total) >= leastIntervals {
		if t.peer != nil && t.p.Bidirectional {
			t.say("over time", "only what end a sends; the figures above are of both")
		}
		t.timeRows(line, rows)
	}
	for i := range line.Dips {
		t.say("dip", dipText(&line.Dips[i], t.unit))
	}
}

// timeRowsOf chooses the rows: all intervals if everything is to be seen.
func timeRowsOf(line *bench.Timeline, all bool) (rows []timeRow) {
	n := len(line.Total)
	from, to := 0, n
	if len(line.Dips) > 0 {
		first, last := &line.Dips[0], &line.Dips[len(line.Dips)-1]
		from = max(0, line.At(first.Struck)-aroundDip)
		over := last.Struck + last.Below
		for _, m := range line.Marks {
			if m.Kind == bench.FaultEnded && m.At > over {
				over = m.At
			}
		}
		to = min(n, line.At(over)+1+aroundDip)
	}
	each := max(1, (to-from+mostTimeRows-1)/mostTimeRows)
	if all {
		from, to, each = 0, n, 1
	}
	if from > 0 {
		rows = append(rows, timeRow{0, from})
	}
	for i := from; i < to; i += each {
		rows = append(rows, timeRow{i, min(i+each, to)})
	}
	if to < n {
		rows = append(rows, timeRow{to, n})
	}
	return rows
}

// timeColumn is a rail, or the rails of a NIC.
type timeColumn struct {
	name  string
	lines [][]float64
}

// timeColumns are the columns of the rails, or of their NICs where the rails have not room enough.
func (t *perfTable) timeColumns(line *bench.Timeline) []timeColumn {
	var rails, nics []timeColumn
	for i := range line.Rails {
		r := &line.Rails[i]
		rails = append(rails, timeColumn{railName(r), [][]float64{r.Total}})
		at := slices.IndexFunc(nics, func(c timeColumn) bool { return c.name == r.Device })
		if at < 0 {
			at = len(nics)
			nics = append(nics, timeColumn{name: r.Device})
		}
		nics[at].lines = append(nics[at].lines, r.Total)
	}
	for _, columns := range [][]timeColumn{rails, nics} {
		width := timeWidth + timeRemarks
		for i := range columns {
			width += 1 + columns[i].width()
		}
		if width <= max(t.width, defaultWidth) {
			return columns
		}
	}
	return nil
}

// timeRows writes the rows.
func (t *perfTable) timeRows(line *bench.Timeline, rows []timeRow) {
	columns := t.timeColumns(line)
	t.printf("    %-12s %6s", "over time, s", t.unit.name)
	for i := range columns {
		t.printf(" %*s", columns[i].width(), columns[i].name)
	}
	t.printf("\n")
	room := max(t.width, defaultWidth) - timeWidth - 2
	for i := range columns {
		room -= 1 + columns[i].width()
	}
	for _, row := range rows {
		t.printf("    %-12s %6s", span(line, row), t.unit.fix(mean(line, row, line.Total)))
		for i := range columns {
			sum := 0.0
			for _, of := range columns[i].lines {
				sum += mean(line, row, of)
			}
			t.printf(" %*s", columns[i].width(), t.unit.fix(sum))
		}
		if said := marksOf(line, row); said != "" {
			t.printf("  %s", shortened(said, room))
		}
		t.printf("\n")
	}
}

// shortened is text that has some room.
func shortened(text string, room int) string {
	if utf8.RuneCountInString(text) <= room {
		return text
	}
	return string([]rune(text)[:max(room-1, 0)]) + "…"
}

// width is that of a column.
func (c *timeColumn) width() int { return max(len(c.name), 5) }

// span says from when to when a row lasts.
func span(line *bench.Timeline, row timeRow) string {
	decimals := 0
	for unit := bench.Seconds(time.Second); decimals < 3 && line.Interval%unit != 0; unit /= 10 {
		decimals++
	}
	end := bench.Seconds(row.end) * line.Interval
	if row.end == len(line.Total) {
		end = line.Length
	}
	return fmt.Sprintf("%.*f-%.*f", decimals, seconds(bench.Seconds(row.first)*line.Interval), decimals,
		seconds(end))
}

func seconds(s bench.Seconds) float64 { return time.Duration(s).Seconds() }

// mean is the bandwidth of a row.
func mean(line *bench.Timeline, row timeRow, of []float64) float64 {
	sum, all := 0.0, 0.0
	for i := row.first; i < row.end; i++ {
		took := line.Took(i).Seconds()
		sum += of[i] * took
		all += took
	}
	return sum / max(all, 1e-9)
}

// marksOf says what happened in a row.
func marksOf(line *bench.Timeline, row timeRow) string {
	var said []string
	for _, m := range line.Marks {
		if i := line.At(m.At); i < row.first || i >= row.end {
			continue
		}
		said = append(said, markText(&m))
	}
	return strings.Join(slices.Compact(said), ", ")
}

// dipText says what a fault did to the bandwidth.
func dipText(d *bench.Dip, in unit) string {
	text := fmt.Sprintf("%s at %.3f s: ", d.Fault, seconds(d.Struck))
	if d.Before == 0 {
		return text + "no interval before it to compare with: let it strike later (at=), or use a shorter " +
			"--interval"
	}
	part := func(gb float64) string {
		return fmt.Sprintf("%s (%.0f %%)", in.fix(gb), 100*gb/d.Before)
	}
	text += fmt.Sprintf("%s %s before, lowest %s at %.3f s, ", in.fix(d.Before), in.name, part(d.Lowest),
		seconds(d.LowestAt))
	switch {
	case d.Below == 0:
		text += "never below 90 %"
	case d.Back:
		text += fmt.Sprintf("below 90 %% for %v", time.Duration(d.Below))
	default:
		return text + fmt.Sprintf("not back to 90 %%: after %v at what is left, %s",
			time.Duration(d.Settled).Round(time.Millisecond), part(d.After))
	}
	return text + ", " + part(d.After) + " after"
}
