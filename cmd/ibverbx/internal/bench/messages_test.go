package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/verbs"
)

var updateGolden = flag.Bool("update", false, "write the golden file of the messages anew")

// TestMessagesGolden compares the messages with what they were. Two builds of one version must
// understand each other: a change of a message raises the version in Protocol.
func TestMessagesGolden(t *testing.T) {
	_, nics := fabric(t, 2)
	var text bytes.Buffer
	fmt.Fprintf(&text, "protocol %s\n", Protocol)
	for _, m := range []struct {
		kind string
		body any
	}{
		{kindOffer, &selfBody{}}, {kindTask, &taskBody{}},
		{kindColumn, cardOf(t, QP, nics)},
		{kindCell, &cellBody{}}, {kindRound, &roundBody{}},
		{kindVerdict, &verdictBody{}},
		{kindRow, &rowBody{}},
		{kindColumn, cardOf(t, layers.Transport, nics)},
		{kindColumn, cardOf(t, layers.Tagged, nics)},
	} {
		if m.kind != kindColumn {
			fill(reflect.ValueOf(m.body).Elem())
		}
		body, err := json.Marshal(m.body)
		if err == nil && m.kind == kindColumn {
			body, err = shape(body)
		}
		if err != nil {
			t.Fatalf("%s: %v", m.kind, err)
		}
		fmt.Fprintf(&text, "%s %s\n", m.kind, body)
	}
	golden := filepath.Join("testdata", "messages.golden")
	if *updateGolden {
		if err := os.WriteFile(golden, text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	have, was := bytes.Split(text.Bytes(), []byte("\n")), bytes.Split(want, []byte("\n"))
	if !bytes.Equal(have[0], was[0]) {
		t.Fatalf("the golden file is of %s, this is %s: run this test with -update", was[0], have[0])
	}
	for i := range max(len(have), len(was)) {
		if i >= len(have) || i >= len(was) || !bytes.Equal(have[i], was[i]) {
			t.Fatalf("a message has changed: raise the version in Protocol, and run this test with -update\n"+
				"%s\n%s", text.Bytes(), want)
		}
	}
}

// cardOf is the card of an end of a layer.
func cardOf(t *testing.T, layer layers.Layer, nics []verbs.Device) layers.Card {
	t.Helper()
	p := params(func(p *Params) { p.Layer, p.Op, p.Sizes = layer, "", nil })
	if err := p.Complete(); err != nil {
		t.Fatal(err)
	}
	column, err := newHalf(p, Spray, newMemory(p, [2]bool{true, false}), 0, nics)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := column.close(); err != nil {
			t.Error(err)
		}
	})
	card, err := column.ends[0].Card()
	if err != nil {
		t.Fatal(err)
	}
	return card
}

// fill sets every field that can be set, so that none is left out of the JSON.
func fill(v reflect.Value) {
	switch v.Interface().(type) {
	case ibverbx.Scheme:
		return // its zero value has a name
	case Fault:
		f, _ := ParseFault("kill-qp@msg=1")
		v.Set(reflect.ValueOf(f))
		return
	case ibverbx.ConnConfig:
		return // does not travel
	case *Timeline, []Loss:
		return // stays with the end that has recorded it
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(1)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.String:
		v.SetString("x")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x"), reflect.ValueOf(1).Convert(v.Type().Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i))
			}
		}
	}
}

// shape keeps of a document what does not differ from run to run: strings and numbers become what
// they are, and of a list the first entry stays.
func shape(text []byte) ([]byte, error) {
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	var of func(v any) any
	of = func(v any) any {
		switch v := v.(type) {
		case string:
			return "string"
		case float64:
			return 1
		case []any:
			if len(v) > 0 {
				return []any{of(v[0])}
			}
		case map[string]any:
			for key := range v {
				v[key] = of(v[key])
			}
		}
		return v
	}
	return json.Marshal(of(doc))
}
