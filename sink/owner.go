package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"lowtide/processor/broker"
	"lowtide/sink/engine"
)

// Owner is how a command reaches the store as the one who may change it: the engine of a running `up`, or a server.
type Owner struct {
	DataDir    string `name:"data" env:"LOWTIDE_DATA" type:"path" default:"~/.local/share/lowtide" placeholder:"DIR" help:"Folder of the running 'up', whose engine is meant where --clickhouse is left out."`
	ClickHouse string `name:"clickhouse" env:"LOWTIDE_CLICKHOUSE" placeholder:"HOST:PORT" help:"A ClickHouse server."`
	Protocol   string `enum:"http,native" default:"http" help:"How to speak to ClickHouse: http or native."`
	User       string `env:"LOWTIDE_CLICKHOUSE_USER" default:"lowtide" help:"ClickHouse user who may change tables; the password comes from LOWTIDE_CLICKHOUSE_PASSWORD."`
}

// open prepares the connection; the caller closes it.
func (o Owner) open(ctx context.Context, log *slog.Logger) (*ClickHouse, error) {
	options := Options{Protocol: o.Protocol, Addr: o.ClickHouse, User: o.User, Password: os.Getenv("LOWTIDE_CLICKHOUSE_PASSWORD"), Log: log}
	if o.ClickHouse == "" {
		addr, err := engineAddress(o.DataDir)
		if err != nil {
			return nil, err
		}
		secret, err := engine.ReadPassword(filepath.Join(o.DataDir, "engine", engine.RoleWriter+".password"))
		if err != nil {
			return nil, err
		}
		options.Protocol, options.Addr, options.User, options.Password = ProtocolHTTP, addr, engine.RoleWriter, secret
	}
	store, err := Open(ctx, options)
	if err != nil {
		return nil, &broker.Failure{What: err.Error(), Remedy: "--clickhouse is HOST:PORT: 8123 for http, 9000 for native", Err: err, Code: 2}
	}
	return store, nil
}

// reachable puts a remedy beside the error of a store that does not answer.
func (o Owner) reachable(err error) error {
	if err == nil || !errors.Is(err, ErrAway) {
		return err
	}
	remedy := "start `lowtide up` again; its engine is not there any more"
	if o.ClickHouse != "" {
		remedy = "is ClickHouse at " + o.ClickHouse + ", and does it speak " + o.Protocol + " there? 8123 is for http, 9000 for native"
	}
	return &broker.Failure{What: err.Error(), Remedy: remedy, Err: err}
}

// engineAddress is what `up` wrote about its engine.
func engineAddress(folder string) (string, error) {
	path := filepath.Join(folder, "engine.json")
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w: cannot read %s\nhint: start `lowtide up`, or say where its data is with --data or LOWTIDE_DATA, or give the address of a server", ErrNoStore, path)
	}
	var place struct {
		Addr string `json:"addr"`
	}
	if err := json.Unmarshal(content, &place); err != nil || place.Addr == "" {
		return "", fmt.Errorf("read %s: it has no addr\nhint: start `lowtide up` again, it writes the file", path)
	}
	return place.Addr, nil
}
