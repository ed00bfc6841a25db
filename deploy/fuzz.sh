#!/bin/sh
# Runs every fuzz target of the tree, two at a time: `fuzz.sh TIME`, or `fuzz.sh TIME LONG PATTERN` for another time for the targets
# that match. Go's fuzzer now and then ends a clean run with "context deadline exceeded" when its time is up in the middle of an
# input (golang/go#48591); that alone, without a failing input, is said and passed.
set -u
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
one='
	file=$1 target=$2 time=$3 logs=$4
	log="$logs/$(echo "$file-$target" | tr -c "A-Za-z0-9_\n" _)"
	if ! go test -run "^\$" -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 1s -parallel 1 "$(dirname "$file")" </dev/null >"$log" 2>&1; then
		if grep -q "Failing input" "$log" || ! grep -q "context deadline exceeded" "$log"; then
			echo "FAIL $file $target"; cat "$log"; exit 255
		fi
		echo "NOTE: $target ended with the fuzzer'"'"'s own deadline error, no failing input"
	fi
	echo "fuzz $time $file $target: $(grep elapsed: "$log" | tail -n 1 | cut -d: -f2-)"
'
grep -rno --include='*_test.go' --exclude-dir=node_modules '^func Fuzz[A-Za-z0-9_]*' . | while IFS=: read -r file _ found; do
	time=$1
	if [ $# -ge 3 ] && echo "$file ${found#func }" | grep -qE "$3"; then time=$2; fi
	echo "$file ${found#func } $time $logs"
done | xargs -P 2 -L 1 sh -c "$one" fuzz
