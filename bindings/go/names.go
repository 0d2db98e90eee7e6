package quire

import (
	"fmt"
	"strconv"
	"strings"
)

// named is a constant's value and its name in lower case, without its group.
type named struct {
	value int64
	text  string
}

func nameOf(names []named, value int64) string {
	for _, n := range names {
		if n.value == value {
			return n.text
		}
	}
	return strconv.FormatInt(value, 10)
}

func valueOf(group string, names []named, text string) (int64, error) {
	known := make([]string, len(names))
	for i, n := range names {
		if n.text == text {
			return n.value, nil
		}
		known[i] = n.text
	}
	return 0, fmt.Errorf("%s must be one of %s, not %q", group, strings.Join(known, ", "), text)
}

func flagNames(names []named, value int64) string {
	var set []string
	for _, n := range names {
		if value&n.value != 0 {
			set = append(set, n.text)
			value &^= n.value
		}
	}
	if value != 0 {
		set = append(set, "0x"+strconv.FormatInt(value, 16))
	}
	return strings.Join(set, "|")
}
