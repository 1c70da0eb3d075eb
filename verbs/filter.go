package verbs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DeviceFilter selects devices by name, in the syntax known from NCCL_IB_HCA and UCX_NET_DEVICES: a
// list separated by commas. Each entry is one of
//
//	mlx5_0      the device of that name
//	mlx5_*      every device whose name starts so
//	mlx5_0:2    the device, with the port to use on it
//	mlx5_*:2    the same for each of them
//	=mlx5_0     the same as mlx5_0
//
// A ^ before the list selects every device that no entry names: "^mlx5_2,mlx5_3". Such a list has
// no ports, since it leaves out whole devices. The empty list, which is the zero value, selects
// every device.
//
// Unlike in NCCL, a plain name is the whole name: mlx5_1 does not select mlx5_10. NCCL's =, which
// has this meaning, may stay.
type DeviceFilter struct {
	exclude bool
	entries []filterEntry
}

// filterEntry is one entry of the list.
type filterEntry struct {
	name   string
	prefix bool // name is a prefix of the device's name
	port   int  // 0 if the entry has none
}

// Selection is a device that a filter selected.
type Selection struct {
	Index int // index of the device's name in the list passed to Select
	Port  int // the port to use; 0 if the filter names none
}

const (
	// maxDeviceName is the longest name in bytes that the kernel gives a device: IB_DEVICE_NAME_MAX
	// less the final zero.
	maxDeviceName = 63
	// maxFilterText bounds the text of a filter, in bytes: twice MaxDevices entries with the
	// longest names.
	maxFilterText = 2 * MaxDevices * (maxDeviceName + len("=:255,"))
)

// ParseDeviceFilter parses a filter.
func ParseDeviceFilter(s string) (DeviceFilter, error) {
	if s == "" {
		return DeviceFilter{}, nil
	}
	if len(s) > maxFilterText {
		return DeviceFilter{}, filterError(s, fmt.Sprintf("%d bytes, at most %d", len(s), maxFilterText))
	}
	list, exclude := strings.CutPrefix(s, "^")
	if list == "" {
		return DeviceFilter{}, filterError(s, "^ is followed by no name")
	}
	f := DeviceFilter{exclude: exclude}
	for text := range strings.SplitSeq(list, ",") {
		e, wrong := parseFilterEntry(text)
		if wrong == "" && exclude && e.port != 0 {
			wrong = fmt.Sprintf("%.80q names a port, but a list after ^ leaves out whole devices", text)
		}
		if wrong != "" {
			return DeviceFilter{}, filterError(s, wrong)
		}
		f.entries = append(f.entries, e)
	}
	return f, nil
}

// parseFilterEntry parses one entry. If the entry is invalid, wrong says why.
func parseFilterEntry(text string) (e filterEntry, wrong string) {
	name, port, hasPort := strings.Cut(text, ":")
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 8)
		if err != nil || n == 0 {
			return e, fmt.Sprintf("port %.80q of %.80q: ports are 1 to 255", port, text)
		}
		e.port = int(n)
	}
	name, exact := strings.CutPrefix(name, "=")
	e.name, e.prefix = strings.CutSuffix(name, "*")
	switch i := strings.IndexFunc(e.name, notInDeviceName); {
	case text == "":
		return e, "an entry is empty"
	case e.name == "" && !e.prefix:
		return e, fmt.Sprintf("%.80q has no name", text)
	case exact && e.prefix:
		return e, fmt.Sprintf("%.80q: = asks for the whole name and * for the start of one", text)
	case len(e.name) > maxDeviceName:
		return e, fmt.Sprintf("the name %.20q... has %d bytes, devices have at most %d", e.name, len(e.name),
			maxDeviceName)
	case i >= 0 && e.name[i] == '^':
		return e, fmt.Sprintf("%.80q: ^ stands before the whole list only", text)
	case i >= 0 && e.name[i] == '*':
		return e, fmt.Sprintf("%.80q: * stands at the end of a name only", text)
	case i >= 0:
		return e, fmt.Sprintf("%.80q: names of devices are of letters, digits and signs, without spaces",
			text)
	}
	return e, ""
}

// notInDeviceName reports whether r cannot be part of a device's name, or has a meaning of its own
// in a filter.
func notInDeviceName(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("^*=/", r) }

func filterError(s, wrong string) error {
	return &OpError{Op: "parse device filter", Detail: fmt.Sprintf("%.80q: %s", s, wrong), Err: ErrInvalid}
}

// Select applies the filter to the names of existing devices. The result is in the order of the
// filter's entries, and within one entry in the order of names. You choose the order because each
// rail pairs with the peer's rail of the same index.
//
// An entry that names no device is an error, which lists the devices, except after ^. A device that
// several entries select takes the place of the first, and the port of the one that names a port.
// Entries that name different ports for a device are an error: a device is used through one port.
func (f DeviceFilter) Select(names []string) ([]Selection, error) {
	if f.exclude || len(f.entries) == 0 {
		return f.rest(names), nil
	}
	var chosen []Selection
	for _, e := range f.entries {
		found := false
		for i, name := range names {
			if !e.matches(name) {
				continue
			}
			found = true
			at := slices.IndexFunc(chosen, func(s Selection) bool { return s.Index == i })
			switch {
			case at < 0:
				chosen = append(chosen, Selection{Index: i, Port: e.port})
			case chosen[at].Port == 0:
				chosen[at].Port = e.port
			case e.port != 0 && e.port != chosen[at].Port:
				return nil, selectError(fmt.Sprintf("%s is chosen with port %d and with port %d, a device "+
					"is used by one port",
					name, chosen[at].Port, e.port))
			}
		}
		if !found {
			return nil, selectError(e.missing(names))
		}
	}
	return chosen, nil
}

// rest selects the devices that no entry names.
func (f DeviceFilter) rest(names []string) []Selection {
	var chosen []Selection
	for i, name := range names {
		if !slices.ContainsFunc(f.entries, func(e filterEntry) bool { return e.matches(name) }) {
			chosen = append(chosen, Selection{Index: i})
		}
	}
	return chosen
}

func (e filterEntry) matches(name string) bool {
	return name == e.name || e.prefix && strings.HasPrefix(name, e.name)
}

// missing returns the text for an entry that names no device.
func (e filterEntry) missing(names []string) string {
	if len(names) == 0 {
		return fmt.Sprintf("no device %s (there is none at all)", e.pattern())
	}
	return fmt.Sprintf("no device %s (have %s)", e.pattern(), strings.Join(names, ", "))
}

func (e filterEntry) pattern() string {
	if e.prefix {
		return e.name + "*"
	}
	return e.name
}

func selectError(detail string) error {
	return &OpError{Op: "select devices", Detail: detail, Err: ErrInvalid}
}

// String returns the filter in the form that ParseDeviceFilter parses.
func (f DeviceFilter) String() string {
	var b strings.Builder
	if f.exclude {
		b.WriteByte('^')
	}
	for i, e := range f.entries {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(e.pattern())
		if e.port != 0 {
			b.WriteString(":" + strconv.Itoa(e.port))
		}
	}
	return b.String()
}

// MarshalText returns the form of String, for JSON and the like.
func (f DeviceFilter) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText parses the filter, so that a filter can be a flag (flag.TextVar).
func (f *DeviceFilter) UnmarshalText(text []byte) error {
	v, err := ParseDeviceFilter(string(text))
	if err != nil {
		return err
	}
	*f = v
	return nil
}
