package event

import "time"

// Ago returns how long before a moment something was: at.Sub(when) for the times of events, which have no monotonic clock. Sub spends most
// of its time on those; a tick of one worker asks dozens of times.
func Ago(at, when time.Time) time.Duration {
	if at == when { // four of five events of a tick have its time
		return 0
	}
	return ago(at, when)
}

func ago(at, when time.Time) time.Duration {
	if s := at.Unix() - when.Unix(); s == int64(int32(s)) {
		return time.Duration(s)*time.Second + time.Duration(at.Nanosecond()-when.Nanosecond())
	}
	return at.Sub(when)
}
