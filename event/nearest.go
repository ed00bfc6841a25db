package event

// Nearest is the closest of the names to one that was mistyped, "" when none is close: at most a third of its letters and one away. Of
// two that are equally close it is the one that begins alike.
func Nearest(name string, names []string) string {
	best, bestDistance, bestShared := "", 1+len(name)/3, 0
	for _, candidate := range names {
		d, shared := distance(name, candidate), 0
		for shared < min(len(name), len(candidate)) && name[shared] == candidate[shared] {
			shared++
		}
		if d < bestDistance || d == bestDistance && (best == "" || shared > bestShared) {
			best, bestDistance, bestShared = candidate, d, shared
		}
	}
	return best
}

// distance is Levenshtein's, over bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
