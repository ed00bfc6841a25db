package bench

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Write prints the result for people.
func (r *Result) Write(to io.Writer) error {
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	line := func(form string, args ...any) { fmt.Fprintf(out, form+"\n", args...) }
	line("fleet\t%d hosts, %d workers, %s; event time ran %.1f times as fast as the clock, the broker's time is real", r.Hosts, r.Workers, r.asked(), r.EventPace)
	line("measured\t%.0f s after %.0f s of warm-up, %d CPUs for everything, the simulated hosts included", r.Seconds, r.WarmSeconds, r.CPUs)
	line("")
	line("worker-samples/s\t%s\tjudged and stored", count(r.PerSecond))
	line("  published\t%s\t%s messages/s of %.1f worker-samples", count(r.PublishedPerSecond), count(r.MessagesPerSecond), r.SamplesPerMessage)
	line("  judged\t%s", count(r.JudgedPerSecond))
	if r.Stored {
		line("  stored\t%s", count(r.StoredPerSecond))
	} else {
		line("  stored\tClickHouse was down (--no-store)")
	}
	line("backlog\t%s messages at first, %s at last, %s at most\t%+.0f/s", count(r.Backlog.Start), count(r.Backlog.End), count(r.Backlog.Most), r.Backlog.PerSecond)
	line("CPU seconds/million\t%.1f own, %.1f engine, %.1f simulated hosts\tcores busy: %.2f, %.2f, %.2f", r.CPU.Own, r.CPU.Engine, r.CPU.Fleet, r.Busy.Own, r.Busy.Engine, r.Busy.Fleet)
	line("  of own\t%.1f in the kernel, %.1f collecting garbage by Go's estimate", r.Kernel, r.Garbage)
	line("other programs\t%.2f cores\tat this cost %d CPUs of its own would carry %s worker-samples/s", r.Others, r.CPUs, count(r.Carries))
	line("bytes/worker-sample\t%.0f payload, %.0f wire, %.0f stream (%.0f on disk), %.0f ClickHouse (%.0f all tables)", r.Bytes.Payload, r.Bytes.Wire, r.Bytes.Stream, r.Bytes.StreamDisk, r.Bytes.Samples, r.Bytes.AllTables)
	line("memory, own\t%s RSS peak, %s live heap (%s idle)\tper 1,000 workers %s RSS peak, %s heap", size(float64(r.Memory.OwnPeakRSS)), size(float64(r.Memory.Heap)), size(float64(r.Memory.IdleHeap)), size(r.Memory.PeakRSSPer1000), size(r.Memory.HeapPer1000))
	line("memory, others\t%s engine RSS peak, %s simulated hosts", size(float64(r.Memory.EnginePeakRSS)), size(float64(r.Memory.FleetPeakRSS)))
	line("event to Slack\tp50 %s, p90 %s, p99 %s, longest %s\t%d of %d planted failures", seconds(r.Slack.P50), seconds(r.Slack.P90), seconds(r.Slack.P99), seconds(r.Slack.Most), r.Slack.Arrived, r.Slack.Planted)
	for _, table := range []struct {
		title  string
		stages []Stage
	}{{"each stage alone", r.Stages}, {"ceilings of the parts", r.Ceilings}} {
		if len(table.stages) == 0 {
			continue
		}
		line("")
		line("%s\t/s\t\tCPU s/million\tengine", table.title)
		for _, s := range table.stages {
			engine := ""
			if s.Engine > 0 {
				engine = fmt.Sprintf("%.1f", s.Engine)
			}
			line("  %s\t%s\t%s\t%.1f\t%s\t%s", s.Name, count(s.PerSecond), s.Unit, s.Million, engine, s.Note)
		}
	}
	line("")
	for _, c := range r.Checks {
		held := "ok"
		if !c.OK {
			held = "FAILED: want " + c.Want
		}
		line("check\t%s\t%s\t%s", c.Name, c.Got, held)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	_, err := fmt.Fprintf(to, "\n%s\n", r.Verdict())
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

func (r *Result) asked() string {
	if r.AskedPerSecond == 0 {
		return "as fast as everything goes"
	}
	return count(r.AskedPerSecond) + " worker-samples/s asked"
}

// Verdict compares with what was promised, in a line.
func (r *Result) Verdict() string {
	if !r.OK() {
		return "VERDICT: a check failed, so that the numbers are worth nothing"
	}
	slack := fmt.Sprintf("event to Slack p99 %s (must %s): %s", seconds(r.Slack.P99), MustSlack, met(r.Slack.Arrived > 0 && r.Slack.P99 < MustSlack.Seconds()))
	if r.Slack.Planted == 0 {
		slack = "event to Slack not measured"
	}
	if r.AskedPerSecond > 0 {
		return fmt.Sprintf("VERDICT: at %s worker-samples/s, the backlog %s; %s", count(r.PerSecond), r.keeps(), slack)
	}
	if !r.Stored {
		return fmt.Sprintf("VERDICT: %s worker-samples/s judged with ClickHouse down; %s", count(r.PerSecond), slack)
	}
	goal := "met"
	if r.PerSecond < GoalPerSecond {
		goal = fmt.Sprintf("short by a factor of %.1f", GoalPerSecond/max(r.PerSecond, 1))
	}
	return fmt.Sprintf("VERDICT: %s worker-samples/s; must %s: %s; goal %s: %s", count(r.PerSecond), count(MustPerSecond), met(r.PerSecond >= MustPerSecond), count(GoalPerSecond), goal)
}

// keeps says whether the readers kept up: less than a hundredth of what comes piles up.
func (r *Result) keeps() string {
	if r.Backlog.PerSecond < 0.01*r.MessagesPerSecond {
		return "does not grow"
	}
	return fmt.Sprintf("GROWS by %s messages a second", count(r.Backlog.PerSecond))
}

func met(yes bool) string {
	if yes {
		return "met"
	}
	return "MISSED"
}

// count writes a whole number with separators.
func count(v float64) string {
	digits := fmt.Sprintf("%.0f", v)
	sign := ""
	if digits[0] == '-' {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

func size(bytes float64) string {
	if bytes >= 1<<30 {
		return fmt.Sprintf("%.2f GiB", bytes/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", bytes/(1<<20))
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Microsecond).String()
}
