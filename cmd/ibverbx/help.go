package main

import (
	"cmp"
	"embed"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
)

// helpFiles have the help texts of a command: its help, and behind a line "Flags:" the texts of its
// flags and arguments, each name on a line of its own and its text indented below. Defaults are in
// brackets.
//
//go:embed help
var helpFiles embed.FS

// helpText reads the file of a command. A command without one has its texts in its tags.
func helpText(command string) (help string, flags map[string]string) {
	text, _ := helpFiles.ReadFile("help/" + command + ".txt")
	help, list, _ := strings.Cut(string(text), "\nFlags:\n")
	flags = map[string]string{}
	name := ""
	for line := range strings.Lines(list) {
		if words, indented := strings.CutPrefix(line, "\t"); indented {
			flags[name] = strings.TrimSpace(flags[name] + " " + strings.TrimSpace(words))
		} else {
			name = strings.TrimSpace(line)
		}
	}
	return strings.NewReplacer("{layers}", layerHelp(), "{faults}\n", bench.FaultHelp()).Replace(help), flags
}

// describeFlags gives each command its help, and each flag and argument its text: the command's
// own, or that of perf.
func describeFlags(k *kong.Kong) error {
	_, perf := helpText("perf")
	for _, command := range k.Model.Children {
		var own map[string]string
		command.Detail, own = helpText(command.Name)
		for _, flag := range command.Flags {
			flag.Help = cmp.Or(own[flag.Name], flag.Help, perf[flag.Name])
			if spelled := strings.ReplaceAll(flag.Name, "-", "_"); spelled != flag.Name {
				flag.Aliases = append(flag.Aliases, spelled) // as perftest spells some
			}
		}
		for _, arg := range command.Positional {
			arg.Help = cmp.Or(own[arg.Name], arg.Help)
		}
	}
	return nil
}

// layerHelp lists the operations of the layers.
func layerHelp() string {
	var b strings.Builder
	for _, s := range layers.Shapes() {
		fmt.Fprintf(&b, "  %-10s %-10s %s\n", s.Layer, s.Op, s.Name)
	}
	return b.String()
}
