FUZZTIME ?= 1m
# What strangers write into the collector's ears is fuzzed for longer, however short the others.
FUZZLEAST ?= 1m
FUZZLONG ?= $(FUZZLEAST) collector/(engine/.*FuzzExposition|allocator/.*FuzzLine|kernel/.*FuzzRecord|oom/.*FuzzParse|ask_test.go.FuzzAsk|snapshot/.*Fuzz(Read|Summary|SummaryOfChild))$$
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
DEMO = $(shell test -e /dev/nvidia0 -o -e /proc/driver/nvidia || echo --demo)

.PHONY: build release test lint generate engine run demo fuzz bench bench-pipeline e2e faults soak wheel gpu-test gpu-story scorecard
build:
	go build -o lowtide .
# What runs on a fleet: a few percent faster, for a few minutes of compiling. The profile is that of `lowtide bench --cpu-profile` and of BenchmarkReplay.
release:
	go build -trimpath -pgo=deploy/lowtide.pgo -o lowtide .
engine:
	npm ci --no-audit --no-fund --prefix sink/engine/npm
test: engine
	go vet ./... && go test ./...
lint:
	test -z "$$(gofmt -l $$(git ls-files '*.go'))" && go vet ./... && go tool staticcheck ./...
generate:
	cd event && go run github.com/bufbuild/buf/cmd/buf@v1.75.0 generate
run: build engine
	@test -z "$(DEMO)" || echo "no GPU on this machine: running the demo"
	./lowtide up $(DEMO)
demo: build engine
	./lowtide up --demo
fuzz:
	@sh deploy/fuzz.sh $(FUZZTIME) $(firstword $(FUZZLONG)) '$(lastword $(FUZZLONG))'
bench:
	go test -run '^$$' -bench . ./...
bench-pipeline: release engine
	./lowtide bench
faults: engine
	go run ./deploy/fault --seed 1001 --runs 3 --parallel 3
soak: engine
	go run ./deploy/fault --runs 200
e2e: engine
	go test -count=1 -run TestEndToEnd .
wheel:
	python3 collector/probe/build_wheel.py .
gpu-test: build
	python3 collector/gputest/matrix.py --lowtide ./lowtide --out gpu-test.out
gpu-story: build
	python3 collector/gputest/story.py --lowtide ./lowtide --out gpu-test.out -- --rate 6 --abort-fraction 0.3 --retain-aborted --retain-mib 32 --cap-fraction 0.07 --burst-seconds 12 --drain-seconds 12
scorecard: build
	./lowtide scorecard --seeds 1000-1009 --healthy-days 1000 --real processor/testdata
