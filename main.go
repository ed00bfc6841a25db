// Command lowtide tells an on-call engineer why an LLM inference worker is going bad.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"lowtide/collector"
	"lowtide/collector/fleet"
	"lowtide/collector/nvml"
	"lowtide/collector/snapshot"
	"lowtide/notifier"
	"lowtide/processor"
	"lowtide/processor/backtest"
	"lowtide/processor/rulebook"
	"lowtide/processor/ruletest"
	"lowtide/processor/scorecard"
	"lowtide/rules"
	"lowtide/sink"
	"lowtide/sink/engine"
)

type commands struct {
	Config kong.ConfigFlag `placeholder:"FILE" env:"LOWTIDE_CONFIG" help:"Settings: flags by their names, at the top or under a command's name. Also read from /etc/lowtide/lowtide.yaml."`

	Up          UpCommand                `cmd:"" help:"Run everything on this machine."`
	Collect     collector.Command        `cmd:"" help:"Run the agent of one host."`
	NVMLChild   nvml.ChildCommand        `cmd:"" name:"nvml-child" hidden:""`
	Record      collector.RecordCommand  `cmd:"" help:"Write what the collector of this host sees as a recording."`
	Process     ProcessCommand           `cmd:"" help:"Judge, store and announce what the collectors publish."`
	Engine      engine.Command           `cmd:"" help:"Run the embedded ClickHouse engine."`
	EngineChild engine.ChildCommand      `cmd:"" hidden:""`
	Replay      processor.ReplayCommand  `cmd:"" help:"Judge recordings: no broker, no store, no clock."`
	Explain     processor.ExplainCommand `cmd:"" help:"Say what a live worker looks like, and why."`
	Scorecard   scorecard.Command        `cmd:"" help:"Judge simulated and real recordings, and count what was right."`
	Simulate    fleet.Command            `cmd:"" help:"Write recordings of simulated workers, healthy ones and with every class of failure, or publish a fleet of them."`
	Snapshot    struct {
		snapshot.Command `embed:""`
		Take             TakeCommand `cmd:"" help:"Ask a host for a snapshot of a worker, and wait for it."`
	} `cmd:"" help:"Say who holds a worker's GPU memory, from snapshots of PyTorch's allocator."`
	SnapshotChild snapshot.ChildCommand `cmd:"" name:"snapshot-child" hidden:""`
	Rules         struct {
		rules.Command `embed:""`

		Test     ruletest.Command `cmd:"" help:"Play the tests of rules, in time too."`
		Backtest backtest.Command `cmd:"" help:"Say what rules would have said of what happened, beside what the active ones said."`

		Push     rulebook.PushCommand     `cmd:"" help:"Make rule files those of the fleet, and see that every processor runs them."`
		List     rulebook.ListCommand     `cmd:"" help:"List the rules that the fleet judges by."`
		Diff     rulebook.DiffCommand     `cmd:"" help:"Say what a push would change, or what one did."`
		History  rulebook.HistoryCommand  `cmd:"" help:"Say who pushed what, and why."`
		Rollback rulebook.RollbackCommand `cmd:"" help:"Push again what a former generation held."`
		Pull     rulebook.PullCommand     `cmd:"" help:"Write the pushed rules as files."`
	} `cmd:"" help:"Work on rules."`
	SQL         sink.SQLCommand           `cmd:"" name:"sql" help:"Ask the store: a query, a file, a pipe, or a prompt."`
	Investigate sink.InvestigateCommand   `cmd:"" help:"Ask the store a saved question; without a name they are listed."`
	Export      sink.ExportCommand        `cmd:"" help:"Write an incident as a recording, which replay judges again."`
	Schema      sink.SchemaCommand        `cmd:"" help:"Bring the store's schema up to date, or show it."`
	Status      sink.StatusCommand        `cmd:"" help:"Show the fleet in one table."`
	Incidents   notifier.IncidentsCommand `cmd:"" help:"Show incidents, and say what you do about them."`
	Silence     notifier.SilenceCommand   `cmd:"" help:"Keep incidents from being announced for a while."`
	Mark        MarkCommand               `cmd:"" help:"Say that a rollout begins, so that it is no kill."`
	Tail        TailCommand               `cmd:"" help:"Print events and findings as they come."`
	Bench       BenchCommand              `cmd:"" help:"Run everything under a simulated fleet and measure it."`
	Doctor      collector.DoctorCommand   `cmd:"" help:"Say what can be seen from here, what cannot, and how to get it."`
	Version     versionCommand            `cmd:"" help:"Print the version."`
}

type versionCommand struct {
	JSON bool `name:"json" help:"As a JSON object."`
}

// Run prints the module's version and the revision it was built from.
func (c versionCommand) Run() error {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	form := "lowtide %s (%s)\n"
	if c.JSON {
		form = "{\"version\":%q,\"revision\":%q}\n"
	}
	_, err := fmt.Printf(form, version(), revision)
	return err
}

// version is that of the module.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends at once
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run returns the exit code: 0 it ran, 1 it failed or a check did, 2 wrong usage.
func run(ctx context.Context, args []string, messages io.Writer) int {
	parser, err := kong.New(new(commands), kong.Name("lowtide"), kong.Description("Says why an LLM inference worker is going bad."),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Configuration(loadSettings, settingsPlace))
	if err != nil {
		return report(messages, err, 1)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return report(messages, fmt.Errorf("%w\nhint: lowtide --help, or --help after a command", err), 2)
	}
	if err := parsed.Run(); err != nil {
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			return report(messages, err, coded.ExitCode())
		}
		return report(messages, err, 1)
	}
	return 0
}

// report writes the error and what to do about it.
func report(out io.Writer, err error, code int) int {
	fmt.Fprintf(out, "error: %v\n", err)
	var hinted interface{ Hint() string }
	if errors.As(err, &hinted) && hinted.Hint() != "" && !strings.Contains(err.Error(), "\nhint: ") {
		fmt.Fprintf(out, "hint: %s\n", hinted.Hint())
	}
	return code
}
