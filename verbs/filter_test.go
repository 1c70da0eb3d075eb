package verbs

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var nics = []string{"mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2", "rxe0"}

func TestDeviceFilter(t *testing.T) {
	for _, c := range []struct {
		filter string
		want   []Selection
	}{
		{"", []Selection{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}},
		{"*", []Selection{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}},
		{"mlx5_1", []Selection{{1, 0}}}, // and not mlx5_10
		{"=mlx5_1", []Selection{{1, 0}}},
		{"mlx5_1*", []Selection{{1, 0}, {2, 0}}},
		{"rxe0,mlx5_0", []Selection{{4, 0}, {0, 0}}}, // in the order of the list
		{"rxe*,mlx5_*", []Selection{{4, 0}, {0, 0}, {1, 0}, {2, 0}, {3, 0}}},
		{"=mlx5_2:2,=mlx5_0:1", []Selection{{3, 2}, {0, 1}}},
		{"*:255", []Selection{{0, 255}, {1, 255}, {2, 255}, {3, 255}, {4, 255}}},
		{"^mlx5_1", []Selection{{0, 0}, {2, 0}, {3, 0}, {4, 0}}},
		{"^=mlx5_1,rxe0", []Selection{{0, 0}, {2, 0}, {3, 0}}},
		{"^mlx5_*", []Selection{{4, 0}}},
		// it is not there, which is as asked
		{"^mlx4_0", []Selection{{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}}},
		{"^*", nil},
		{"mlx5_2,mlx5_2", []Selection{{3, 0}}},
		{"mlx5_2,mlx5_*", []Selection{{3, 0}, {0, 0}, {1, 0}, {2, 0}}},
		{"mlx5_2:2,mlx5_*", []Selection{{3, 2}, {0, 0}, {1, 0}, {2, 0}}},
		{"mlx5_1*,mlx5_10:2", []Selection{{1, 0}, {2, 2}}},
		{"mlx5_0:2,mlx5_0:2", []Selection{{0, 2}}},
	} {
		f, err := ParseDeviceFilter(c.filter)
		if err != nil {
			t.Errorf("%q: %v", c.filter, err)
			continue
		}
		got, err := f.Select(nics)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q chooses %v (%v), want %v", c.filter, got, err, c.want)
		}
		if want := strings.ReplaceAll(c.filter, "=", ""); f.String() != want {
			t.Errorf("%q writes itself %q, want %q", c.filter, f.String(), want)
		}
	}
	if got, err := (DeviceFilter{}).Select(nil); got != nil || err != nil {
		t.Errorf("of no devices the empty filter chooses %v, %v", got, err)
	}
}

func TestDeviceFilterSelectErrors(t *testing.T) {
	for _, c := range []struct {
		filter string
		names  []string
		want   string
	}{
		{"mlx5_7", []string{"mlx5_0", "mlx5_1"}, "no device mlx5_7 (have mlx5_0, mlx5_1)"},
		{"mlx5_0,mlx4_*:2", []string{"mlx5_0", "mlx5_1"}, "no device mlx4_* (have mlx5_0, mlx5_1)"},
		{"mlx5_7", nil, "no device mlx5_7 (there is none at all)"},
		{"mlx5_0:1,mlx5_0:2", nics, "mlx5_0 is chosen with port 1 and with port 2"},
		{"mlx5_*:1,mlx5_0:2", nics, "mlx5_0 is chosen with port 1 and with port 2"},
	} {
		f, err := ParseDeviceFilter(c.filter)
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.Select(c.names)
		if got != nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q chooses %v: %v, want %q", c.filter, got, err, c.want)
		}
	}
}

func TestParseDeviceFilterErrors(t *testing.T) {
	long := strings.Repeat("x", maxDeviceName)
	for _, c := range []struct{ filter, want string }{
		{",", "an entry is empty"},
		{"mlx5_0,", "an entry is empty"},
		{"mlx5_0,,mlx5_1", "an entry is empty"},
		{"^", "^ is followed by no name"},
		{"^^mlx5_0", "^ stands before the whole list"},
		{"mlx5_0,^mlx5_1", "^ stands before the whole list"},
		{"=^mlx5_0", "^ stands before the whole list"},
		{":1", "has no name"},
		{"=", "has no name"},
		{"=:1", "has no name"},
		{"mlx5_0:0", `port "0"`},
		{"mlx5_0:256", `port "256"`},
		{"mlx5_0:", `port ""`},
		{"mlx5_0:-1", `port "-1"`},
		{"mlx5_0:+1", `port "+1"`},
		{"mlx5_0:one", `port "one"`},
		{"mlx5_0:1:2", `port "1:2"`},
		{"mlx5_0:1*", `port "1*"`},
		{"^mlx5_0:1", "leaves out whole devices"},
		{"=mlx5_*", "= asks for the whole name"},
		{"mlx5_*0", "* stands at the end"},
		{"mlx5_**", "* stands at the end"},
		{"mlx5=0", "letters, digits and signs"},
		{"mlx5_0, mlx5_1", "without spaces"},
		{"mlx5_0\n", "without spaces"},
		{"mlx5_0\x00", "letters, digits and signs"},
		{"../mlx5_0", "letters, digits and signs"},
		{"mlx5_ö", "letters, digits and signs"},
		{"mlx5_\xff", "letters, digits and signs"},
		{long + "x", "64 bytes, devices have at most 63"},
		{strings.Repeat(long+",", 1000), "bytes, at most"},
	} {
		f, err := ParseDeviceFilter(c.filter)
		op := (*OpError)(nil)
		if !errors.Is(err, ErrInvalid) || !errors.As(err, &op) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, want %q", c.filter, err, c.want)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%.40q: an error of %d bytes", c.filter, len(err.Error()))
		}
		if !reflect.DeepEqual(f, DeviceFilter{}) {
			t.Errorf("%.40q is refused and yet is %v", c.filter, f)
		}
	}
	if _, err := ParseDeviceFilter(long + "*"); err != nil {
		t.Error(err)
	}
}

func TestDeviceFilterText(t *testing.T) {
	var config struct{ Devices DeviceFilter }
	if err := json.Unmarshal([]byte(`{"Devices":"=mlx5_2:2,rxe*"}`), &config); err != nil {
		t.Fatal(err)
	}
	if data, err := json.Marshal(config); err != nil || string(data) != `{"Devices":"mlx5_2:2,rxe*"}` {
		t.Errorf("%s, %v", data, err)
	}
	if err := json.Unmarshal([]byte(`{"Devices":"a,,b"}`), &config); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
	if got := config.Devices.String(); got != "mlx5_2:2,rxe*" {
		t.Errorf("a text that is refused leaves %q", got)
	}
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var devices DeviceFilter
	flags.TextVar(&devices, "dev", DeviceFilter{}, "")
	if err := flags.Parse([]string{"-dev", "^mlx5_2"}); err != nil || devices.String() != "^mlx5_2" {
		t.Errorf("%v, %v", devices, err)
	}
}
