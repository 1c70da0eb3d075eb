package plot

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// hostile is text that would end the place where it stands, and load something.
const hostile = `</script></title><img src=http://x.test/a><script src="//x.test/b">'"` + "`${1}` <!-- \u2028"

func page() *Page {
	return &Page{
		Title: "write " + hostile,
		Lines: []string{hostile},
		Charts: []Chart{{
			Title: hostile, Unit: "GB/s", Times: []float64{0, 0.01, 0.015},
			Lines: []Line{{Name: "total", Group: -1, Values: []float64{1.5, 2}},
				{Name: hostile, Group: 0, Values: []float64{0.5, 1e-9}}},
			Marks: []Mark{{At: 0.005, Text: hostile, Until: 0.012}, {At: 0.012, Text: "ends"}},
		}, {Title: "second", Times: []float64{0}, Lines: []Line{}, Marks: []Mark{}}},
	}
}

// document is a written page, parsed.
type document struct {
	scripts, styles []string
	elements        []*html.Node
	text            string
}

func parse(t *testing.T, p *Page) (d document) {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(&b)
	if err != nil {
		t.Fatal(err)
	}
	for n := range root.Descendants() {
		switch {
		case n.Type == html.ElementNode:
			d.elements = append(d.elements, n)
		case n.Type != html.TextNode:
		case n.Parent.Data == "script":
			d.scripts = append(d.scripts, n.Data)
		case n.Parent.Data == "style":
			d.styles = append(d.styles, n.Data)
		default:
			d.text += n.Data + "\n"
		}
	}
	return d
}

// loading are the attributes that name what a browser loads or goes to.
var loading = []string{"src", "href", "srcset", "data", "poster", "action", "formaction", "background",
	"ping", "style", "srcdoc", "xlink:href"}

// A browser that opens the file loads nothing, whatever the texts in it say.
func TestNothingIsLoaded(t *testing.T) {
	d := parse(t, page())
	policy := ""
	for _, n := range d.elements {
		switch n.Data {
		case "img", "iframe", "object", "embed", "base", "audio", "video", "form", "a":
			t.Errorf("<%s>", n.Data)
		}
		for _, a := range n.Attr {
			if slices.Contains(loading, a.Key) && a.Val != "data:," || strings.HasPrefix(a.Key, "on") {
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
			if n.Data == "meta" && a.Val == "Content-Security-Policy" {
				policy = n.Attr[1].Val
			}
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "http") {
		t.Errorf("policy %q", policy)
	}
	for _, style := range d.styles {
		if strings.Contains(style, "url(") || strings.Contains(style, "@import") {
			t.Errorf("style %.100s", style)
		}
	}
	if n := strings.Count(d.text, hostile); n != 4 { // title and heading, line, chart
		t.Errorf("the text stands there %d times:\n%s", n, d.text)
	}
}

// The library and the data are in the file.
func TestWhatIsInTheFile(t *testing.T) {
	p := page()
	d := parse(t, p)
	if len(d.scripts) != 2 || d.scripts[0] != string(library) {
		t.Fatalf("%d scripts", len(d.scripts))
	}
	version := "(v" + strings.TrimPrefix(Library, "uPlot ") + ")"
	if !strings.Contains(string(library[:200]), version) {
		t.Errorf("the library is not %s: %s", Library, library[:100])
	}
	if !strings.Contains(d.text, "The MIT License") || !strings.Contains(d.text, Library) {
		t.Errorf("no licence in\n%s", d.text)
	}
	_, data, _ := strings.Cut(d.scripts[1], "const charts = ")
	var charts []Chart
	if err := json.NewDecoder(strings.NewReader(data)).Decode(&charts); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(charts, p.Charts) {
		t.Errorf("charts\n%+v, want\n%+v", charts, p.Charts)
	}
	places := 0
	for _, n := range d.elements {
		if n.Data == "div" {
			places++
		}
	}
	if places != len(p.Charts) {
		t.Errorf("%d places for %d charts", places, len(p.Charts))
	}
}
