package logs

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"time"

	json "github.com/go-json-experiment/json"
)

// colour is an ANSI sequence, which vLLM puts around its process names.
var colour = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// tidy makes text of a line: container runtimes' envelopes and colours are taken off. The time is the runtime's, zero where
// there is none.
func tidy(line []byte) (text string, at time.Time) {
	line = bytes.TrimRight(line, "\r\n")
	line, at = unwrap(line)
	text = strings.ToValidUTF8(string(line), "\uFFFD")
	if strings.IndexByte(text, '\x1b') >= 0 {
		text = colour.ReplaceAllString(text, "")
	}
	return text, at
}

// unwrap takes off what a container runtime puts around a line: CRI's "TIME stdout|stderr F|P TEXT" (files under /var/log/pods),
// and Docker's {"log":"TEXT\n","stream":"stderr","time":"TIME"}.
func unwrap(line []byte) ([]byte, time.Time) {
	if bytes.HasPrefix(line, []byte(`{"log":"`)) {
		var docker struct {
			Log  string `json:"log"`
			Time string `json:"time"`
		}
		if json.Unmarshal(line, &docker) == nil {
			return bytes.TrimRight([]byte(docker.Log), "\r\n"), moment(docker.Time)
		}
		return line, time.Time{}
	}
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok || len(stamp) < len("2006-01-02T15:04:05Z") || len(stamp) > 35 || stamp[4] != '-' {
		return line, time.Time{}
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" || len(rest) < 2 || rest[1] != ' ' {
		return line, time.Time{}
	}
	return rest[2:], moment(string(stamp))
}

func moment(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// What stands before the text in vLLM's lines (one group a process it came through), in SGLang's, and in PyTorch's C++ ones.
var (
	vllmPrefix   = regexp.MustCompile(`^\(([A-Za-z]{1,24})((?:[ _](?:DP|TP|PP|EP|DCP|rank=)?[0-9]{1,5})*) pid=([0-9]{1,10})\) ?`)
	vllmLevel    = regexp.MustCompile(`^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]+)? (?:\[[^\]]{1,64}\] ?)?`)
	sglangPrefix = regexp.MustCompile(`^\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}((?: [A-Z_]{2,12}[0-9]{1,5})*)\] ?`)
	torchRank    = regexp.MustCompile(`(?i)\[(?:PG [^\]]{0,48} )?rank ?([0-9]{1,5})\]`)
	part         = regexp.MustCompile(`(DP|TP|PP|rank=)?([0-9]{1,5})`)
)

// speaker is who wrote a line, as it says itself.
type speaker struct {
	pid   string // in its own pid namespace
	index *int64 // data-parallel engine
	rank  *int64 // in its engine; unknown with pipeline stages, since their width does not show
}

// introduce reads a line's prefix and returns the rest.
func introduce(text string) (who speaker, rest string) {
	staged := false
	read := func(parts string, bare **int64) {
		for _, m := range part.FindAllStringSubmatch(parts, 8) {
			n, err := strconv.ParseInt(m[2], 10, 32)
			if err != nil {
				continue
			}
			switch m[1] {
			case "DP":
				who.index = &n
			case "TP", "rank=":
				who.rank = &n
			case "PP":
				staged = true
			case "":
				if bare != nil {
					*bare = &n
				}
			}
		}
	}
	rest = text
	for range 4 { // API server, core, worker: more do not come
		m := vllmPrefix.FindStringSubmatch(rest)
		if m == nil {
			break
		}
		var bare **int64
		if m[1] == "EngineCore" {
			bare = &who.index // "EngineCore_0"
		}
		who.pid = m[3]
		read(experts.ReplaceAllString(m[2], ""), bare)
		rest = rest[len(m[0]):]
	}
	rest = rest[len(vllmLevel.FindString(rest)):]
	if m := sglangPrefix.FindStringSubmatch(rest); m != nil {
		read(experts.ReplaceAllString(m[1], ""), nil)
		rest = rest[len(m[0]):]
	}
	if m := torchRank.FindStringSubmatch(rest[:min(len(rest), 256)]); m != nil && who.rank == nil {
		read("rank="+m[1], nil)
	}
	if staged {
		who.rank = nil
	}
	return who, rest
}

// experts are parallel dimensions that say nothing about which process it is.
var experts = regexp.MustCompile(`[ _](?:EP|DCP|ATTN_[A-Z]+|MOE_[A-Z]+)[0-9]{1,5}`)

// quotes says whether the line repeats what a user sent, which vLLM and SGLang log on request. What stands in a prompt must
// wake nobody.
func quotes(text string) bool {
	return strings.Contains(text, "Received request ") || strings.Contains(text, "GenerateReqInput(") || strings.Contains(text, "EmbeddingReqInput(")
}
