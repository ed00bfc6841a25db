package process

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"lowtide/collector/status"
)

// kubelet asks the kubelet's podresources service, version 1, which containers hold which devices. It speaks gRPC's one unary call
// by hand, over the HTTP/2 of the standard library, and reads five fields of the answer: the gRPC module would add 10 MB to the
// binary for it.
type kubelet struct {
	socket string
	client *http.Client
}

// mostAnswer is the longest message the kubelet sends, in bytes.
const mostAnswer = 16 << 20

func newKubelet(socket string) *kubelet {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	dialer := &net.Dialer{Timeout: kubeletDeadline}
	return &kubelet{socket: socket, client: &http.Client{Transport: &http.Transport{
		Protocols: protocols, IdleConnTimeout: time.Minute, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
}

// list returns who holds what. The error wraps os.ErrNotExist where there is no kubelet, or one of the status errors.
func (k *kubelet) list(ctx context.Context) ([]assignment, error) {
	// The path is looked up anew each time: the kubelet makes another socket when it starts.
	if _, err := os.Stat(k.socket); err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1.PodResourcesLister/List", bytes.NewReader(make([]byte, 5)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	answer, err := k.client.Do(request)
	if err != nil {
		return nil, reason(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer+5))
	if err != nil {
		return nil, reason(err)
	}
	if err := verdict(answer); err != nil {
		return nil, err
	}
	if len(body) < 5 || body[0] != 0 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-5) {
		return nil, fmt.Errorf("%w: the answer is no message of up to %d bytes", status.ErrUnsupported, mostAnswer)
	}
	return parseAssignments(body[5:])
}

// reason tells what a failed connection means.
func reason(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %w; run as root, or give the user access to the folder", status.ErrDenied, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w; the kubelet is down, or its folder is not mounted anew", status.ErrLost, err)
	default:
		return err
	}
}

// verdict reads gRPC's own status, which comes after the body, or with the headers when there is none.
func verdict(answer *http.Response) error {
	code := first(answer.Trailer.Get("Grpc-Status"), answer.Header.Get("Grpc-Status"))
	message := first(answer.Trailer.Get("Grpc-Message"), answer.Header.Get("Grpc-Message"))
	if len(message) > 200 {
		message = message[:200]
	}
	switch {
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: HTTP status %d", status.ErrUnsupported, answer.StatusCode)
	case code == "0":
		return nil
	case code == "4":
		return fmt.Errorf("%s: %w", message, context.DeadlineExceeded)
	case code == "7", code == "16":
		return fmt.Errorf("%w: %s", status.ErrDenied, message)
	case code == "12":
		return fmt.Errorf("%w: %s; podresources version 1 came with Kubernetes 1.20", status.ErrUnsupported, message)
	default:
		return fmt.Errorf("%w: gRPC status %q: %s", status.ErrLost, code, message)
	}
}

// parseAssignments reads a ListPodResourcesResponse: pod_resources = 1 {name = 1, namespace = 2, containers = 3 {name = 1, devices = 2
// {resource_name = 1, device_ids = 2}}}. Other fields are skipped.
func parseAssignments(message []byte) ([]assignment, error) {
	var out []assignment
	err := fields(message, func(n protowire.Number, pod []byte) error {
		if n != 1 {
			return nil
		}
		var name podName
		var containers [][]byte
		if err := fields(pod, func(n protowire.Number, v []byte) error {
			switch n {
			case 1:
				name.name = string(v)
			case 2:
				name.namespace = string(v)
			case 3:
				containers = append(containers, v)
			}
			return nil
		}); err != nil {
			return err
		}
		for _, c := range containers {
			found, err := parseContainer(c, name)
			if err != nil {
				return err
			}
			out = append(out, found...)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: read answer of kubelet: %w", status.ErrUnsupported, err)
	}
	return out, nil
}

func parseContainer(message []byte, pod podName) ([]assignment, error) {
	var ids []string
	err := fields(message, func(n protowire.Number, v []byte) error {
		switch n {
		case 1:
			pod.container = string(v)
		case 2:
			resource, devices := "", []string(nil)
			if err := fields(v, func(n protowire.Number, v []byte) error {
				switch n {
				case 1:
					resource = string(v)
				case 2:
					devices = append(devices, string(v))
				}
				return nil
			}); err != nil {
				return err
			}
			for _, id := range devices {
				// A GPU's own id is one under whatever name its resource goes.
				if strings.HasPrefix(resource, "nvidia.com/") || strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-") {
					ids = append(ids, id)
				}
			}
		}
		return nil
	})
	out := make([]assignment, len(ids))
	for i, id := range ids {
		out[i] = assignment{pod: pod, device: id}
	}
	return out, err
}

// fields walks the length-delimited fields of a message and skips the others.
func fields(message []byte, visit func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		if err := visit(number, value); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// Close lets go of the connection.
func (k *kubelet) Close() { k.client.CloseIdleConnections() }
