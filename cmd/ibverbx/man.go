package main

import (
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// manFlag writes the manual page and ends the command.
type manFlag bool

// BeforeReset does that before a command is asked for.
func (manFlag) BeforeReset(k *kong.Kong) error { //nolint:unparam // the signature is kong's
	writeManual(k.Stdout, k.Model)
	k.Exit(0)
	return nil
}

// writeManual writes what --help says of all commands as a manual page, in the macros of man(7).
func writeManual(w io.Writer, app *kong.Application) {
	out := &printer{w: w}
	out.printf(".TH %s 1 \"\" \"%s\"\n", strings.ToUpper(app.Name), roff(version()))
	out.printf(".SH NAME\n%s \\- %s\n", app.Name, roff(strings.TrimSuffix(app.Help, ".")))
	out.printf(".SH SYNOPSIS\n")
	for _, command := range app.Children {
		if command != app.Children[0] {
			out.printf(".br\n")
		}
		out.printf(".B %s %s\n", app.Name, roff(command.Summary()))
	}
	out.printf(".SH OPTIONS\n")
	manualFlags(out, app.Flags)
	for _, command := range app.Children {
		out.printf(".SH %s %s\n%s\n.PP\n", strings.ToUpper(app.Name), strings.ToUpper(command.Name),
			roff(command.Help))
		manualText(out, command.Detail)
		group := ""
		for _, f := range command.Flags {
			if f.Group != nil && f.Group.Key != group {
				group = f.Group.Key
				out.printf(".SS %s\n", roff(f.Group.Title))
			}
			manualFlags(out, []*kong.Flag{f})
		}
	}
	out.printf(".SH EXIT STATUS\n0 when all went well, 1 when something failed, 2 when the flags make no " +
		"sense, 130 after Ctrl\\-C.\n")
}

// manualFlags describes flags.
func manualFlags(out *printer, flags []*kong.Flag) {
	for _, f := range flags {
		if f.Hidden || f.Name == "help" {
			continue
		}
		name := "--" + f.Name
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		if value := f.FormatPlaceHolder(); !f.IsBool() && value != "" {
			name += "=" + value
		}
		help := strings.ReplaceAll(f.Help, "${default}", f.Default)
		out.printf(".TP\n.B %s\n%s\n", roff(name), roff(help))
	}
}

// manualText writes paragraphs; lines that are set off stay as they are.
func manualText(out *printer, text string) {
	asIs := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch set := strings.HasPrefix(line, "  "); {
		case line == "" && !asIs:
			out.printf(".PP\n")
			continue
		case set && !asIs:
			out.printf(".PP\n.nf\n")
			asIs = true
		case !set && asIs:
			out.printf(".fi\n.PP\n")
			if asIs = false; line == "" {
				continue
			}
		}
		out.printf("%s\n", roff(line))
	}
	if asIs {
		out.printf(".fi\n")
	}
}

// roff writes text so that man(7) takes nothing in it for a request.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
