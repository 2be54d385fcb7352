package jinja

import (
	"fmt"
	"strings"
	"time"
)

// formats are Python's, as Go has them. Those with a minus write no zero ahead.
var formats = map[string]string{
	"Y": "2006", "m": "01", "d": "02", "B": "January", "b": "Jan", "h": "Jan", "A": "Monday", "a": "Mon", "H": "15", "M": "04", "S": "05",
	"y": "06", "I": "03", "p": "PM", "e": "_2", "j": "002", "f": "000000", "F": "2006-01-02", "T": "15:04:05", "R": "15:04", "D": "01/02/06",
	"-d": "2", "-m": "1", "-I": "3", "-M": "4", "-S": "5", "-y": "", "-j": "", "-H": "", "n": "\n", "t": "\t",
}

// strftime writes a time by a format of Python.
func strftime(now time.Time, format string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		name := format[i : i+1]
		if name == "-" && i+1 < len(format) {
			i++
			name += format[i : i+1]
		}
		layout, known := formats[name]
		switch {
		case name == "%":
			b.WriteByte('%')
		case name == "f":
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case name == "-H":
			fmt.Fprint(&b, now.Hour())
		case name == "-j":
			fmt.Fprint(&b, now.YearDay())
		case name == "-y":
			fmt.Fprint(&b, now.Year()%100)
		case !known:
			return "", unsupported("the time format %" + name)
		default:
			b.WriteString(now.Format(layout))
		}
	}
	return b.String(), nil
}
