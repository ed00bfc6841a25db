package sink

import "errors"

// Refusal is an error that ClickHouse itself gave.
type Refusal struct {
	Code    int // as ClickHouse numbers them
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// recourse is what to do about a failed insert.
type recourse uint8

const (
	recourseWait  recourse = iota // the block is sound: try again for as long as it takes
	recourseSplit                 // it may be too much at once: smaller pieces may go, and a single row waits
	recourseDrop                  // something in it will never be taken: find it, and keep it elsewhere
	recourseAsk                   // nobody has said yet: wait first, then as recourseDrop
)

// recourses are the codes of ClickHouse whose meaning for an insert is known, and why. A code that stands for the state of the server, of
// its disk, its schema or its accounts says nothing about the rows: an operator or time will change it.
var recourses = map[int]struct {
	recourse recourse
	name     string
}{
	16:  {recourseWait, "NO_SUCH_COLUMN_IN_TABLE"},          // the schema is older than this program; `lowtide schema up`
	20:  {recourseWait, "NUMBER_OF_COLUMNS_DOESNT_MATCH"},   // the same
	47:  {recourseWait, "UNKNOWN_IDENTIFIER"},               // a view was made for another schema
	50:  {recourseWait, "UNKNOWN_TYPE"},                     // the server is too old
	53:  {recourseWait, "TYPE_MISMATCH"},                    // a column was changed; all rows would be refused
	57:  {recourseWait, "TABLE_ALREADY_EXISTS"},             // a migration is under way
	60:  {recourseWait, "UNKNOWN_TABLE"},                    // not migrated yet, or dropped and to be made again
	81:  {recourseWait, "UNKNOWN_DATABASE"},                 // the same
	74:  {recourseWait, "CANNOT_READ_FROM_FILE_DESCRIPTOR"}, // its disk
	75:  {recourseWait, "CANNOT_WRITE_TO_FILE_DESCRIPTOR"},  // its disk
	76:  {recourseWait, "CANNOT_OPEN_FILE"},                 // its disk
	115: {recourseWait, "UNKNOWN_SETTING"},                  // the server is too old, or a setting was taken away
	159: {recourseWait, "TIMEOUT_EXCEEDED"},                 // slow
	160: {recourseWait, "TOO_SLOW"},
	164: {recourseWait, "READONLY"}, // the account or the server
	173: {recourseWait, "CANNOT_ALLOCATE_MEMORY"},
	192: {recourseWait, "UNKNOWN_USER"},
	193: {recourseWait, "WRONG_PASSWORD"},
	198: {recourseWait, "DNS_ERROR"},
	201: {recourseWait, "QUOTA_EXCEEDED"},
	202: {recourseWait, "TOO_MANY_SIMULTANEOUS_QUERIES"},
	203: {recourseWait, "NO_FREE_CONNECTION"},
	209: {recourseWait, "SOCKET_TIMEOUT"},
	210: {recourseWait, "NETWORK_ERROR"},
	218: {recourseWait, "TABLE_IS_DROPPED"},
	225: {recourseWait, "NO_ZOOKEEPER"},
	236: {recourseWait, "ABORTED"}, // it is stopping
	242: {recourseWait, "TABLE_IS_READ_ONLY"},
	243: {recourseWait, "NOT_ENOUGH_SPACE"}, // disk full
	252: {recourseWait, "TOO_MANY_PARTS"},   // merges will catch up
	285: {recourseWait, "TOO_FEW_LIVE_REPLICAS"},
	286: {recourseWait, "UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE"},
	289: {recourseWait, "REPLICA_IS_NOT_IN_QUORUM"},
	319: {recourseWait, "UNKNOWN_STATUS_OF_INSERT"}, // the token makes asking again harmless
	341: {recourseWait, "UNFINISHED"},
	195: {recourseWait, "IP_ADDRESS_NOT_ALLOWED"},
	373: {recourseWait, "SESSION_IS_LOCKED"},
	394: {recourseWait, "QUERY_WAS_CANCELLED"},
	439: {recourseWait, "CANNOT_SCHEDULE_TASK"},
	452: {recourseWait, "SETTING_CONSTRAINT_VIOLATION"}, // the account's profile
	473: {recourseWait, "DEADLOCK_AVOIDED"},
	497: {recourseWait, "ACCESS_DENIED"},
	516: {recourseWait, "AUTHENTICATION_FAILED"},
	517: {recourseWait, "CANNOT_ASSIGN_ALTER"},
	692: {recourseWait, "TOO_MANY_MUTATIONS"},
	745: {recourseWait, "SERVER_OVERLOADED"},
	999: {recourseWait, "KEEPER_EXCEPTION"},

	161: {recourseSplit, "TOO_MANY_COLUMNS"},      // the embedded engine says so of a body that is too large
	241: {recourseSplit, "MEMORY_LIMIT_EXCEEDED"}, // mostly of the server, sometimes of this block
	307: {recourseSplit, "TOO_MANY_BYTES"},
	396: {recourseSplit, "TOO_MANY_ROWS_OR_BYTES"},

	6:   {recourseDrop, "CANNOT_PARSE_TEXT"},
	26:  {recourseDrop, "CANNOT_PARSE_QUOTED_STRING"}, // of a view that takes JSON apart
	27:  {recourseDrop, "CANNOT_PARSE_INPUT_ASSERTION_FAILED"},
	33:  {recourseDrop, "CANNOT_READ_ALL_DATA"},
	38:  {recourseDrop, "CANNOT_PARSE_DATE"},
	41:  {recourseDrop, "CANNOT_PARSE_DATETIME"},
	69:  {recourseDrop, "ARGUMENT_OUT_OF_BOUND"},
	70:  {recourseDrop, "CANNOT_CONVERT_TYPE"},
	72:  {recourseDrop, "CANNOT_PARSE_NUMBER"},
	117: {recourseDrop, "INCORRECT_DATA"},
	128: {recourseDrop, "TOO_LARGE_ARRAY_SIZE"},
	131: {recourseDrop, "TOO_LARGE_STRING_SIZE"},
	153: {recourseDrop, "ILLEGAL_DIVISION"}, // of a view
	321: {recourseDrop, "VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE"},
	349: {recourseDrop, "CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN"},
	395: {recourseDrop, "FUNCTION_THROW_IF_VALUE_IS_NON_ZERO"}, // of a view
	407: {recourseDrop, "DECIMAL_OVERFLOW"},
	469: {recourseDrop, "VIOLATED_CONSTRAINT"},
	376: {recourseDrop, "CANNOT_PARSE_UUID"},
}

// recourseTo says what to do about an error of an insert. What did not come from ClickHouse came from the way to it.
func recourseTo(err error) recourse {
	var refusal *Refusal
	if !errors.As(err, &refusal) {
		return recourseWait
	}
	if known, ok := recourses[refusal.Code]; ok {
		return known.recourse
	}
	return recourseAsk
}
