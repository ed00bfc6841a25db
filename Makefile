FUZZTIME ?= 1m
DEMO = $(shell test -e /dev/nvidia0 -o -e /proc/driver/nvidia || echo --demo)

.PHONY: build test lint generate engine run demo fuzz bench e2e
build:
	go build -o lowtide .
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
	@sh deploy/fuzz.sh $(FUZZTIME)
bench:
	go test -run '^$$' -bench . ./...
e2e: engine
	go test -count=1 -run TestEndToEnd .
