package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/stream"
	"ibverbx/stream/files"
)

// filesFlags are those of both ends that copy files.
type filesFlags struct {
	TokenFile string `required:"" placeholder:"FILE" predictor:"file"`
	nicFlags
}

// with calls do with what the flags say, and then waits for what is still to be delivered.
func (f *filesFlags) with(do func(stream.Config, files.Config) error) error {
	if err := f.check(f.Provider); err != nil {
		return err
	}
	token, err := os.ReadFile(f.TokenFile)
	if err != nil {
		return err
	}
	host, err := openNICs(f.config(f.Provider))
	if err != nil {
		return err
	}
	err = do(stream.Config{Host: host, Fallback: true, Logger: slog.New(slog.DiscardHandler)},
		files.Config{Token: bytes.TrimSpace(token)})
	ctx, stop := context.WithTimeout(context.Background(), greeting)
	defer stop()
	return errors.Join(err, stream.CloseIdle(ctx, host), host.Close())
}

type serveCmd struct {
	Dir    string     `arg:"" predictor:"file"`
	Listen listenFlag `placeholder:"[ADDR]"`
	filesFlags
	TLSCert string `name:"tls-cert" placeholder:"FILE" predictor:"file"`
	TLSKey  string `name:"tls-key" placeholder:"FILE" predictor:"file"`
}

// Run serves a directory until Ctrl-C.
func (f *serveCmd) Run(c *console) error {
	address := cmp.Or(f.Listen.address, ":"+defaultPort)
	return f.with(func(cfg stream.Config, own files.Config) error {
		if f.TLSCert+f.TLSKey != "" {
			pair, err := tls.LoadX509KeyPair(f.TLSCert, f.TLSKey)
			if err != nil {
				return usage("--tls-cert, --tls-key: %v", err)
			}
			cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}}
		}
		l, err := stream.Listen(c.ctx, address, cfg)
		if err != nil {
			return err
		}
		c.complain("ibverbx: serving %s on %v with %v\n", f.Dir, l.Addr(), cfg.Host)
		own.Ended = func(who net.Addr, r files.Report, err error) {
			if err == nil {
				err = errors.New("complete")
			}
			c.complain("ibverbx: %v: %d files, %.3f GB: %s\n", who, r.Files, gb(r.Bytes), reason(err))
		}
		return files.Serve(c.ctx, l, f.Dir, own)
	})
}

func gb(bytes int64) float64 { return float64(bytes) / 1e9 }

type cpCmd struct {
	Names   []string `arg:"" placeholder:"SRC... DST" predictor:"file"`
	Port    int      `short:"p" range:"1..65535" default:"18515"`
	Streams int      `range:"1..64" default:"8"`
	filesFlags
	TLSCA string `name:"tls-ca" placeholder:"FILE" predictor:"file"`
	JSON  bool   `name:"json"`
}

// Run copies to or from a host.
func (f *cpCmd) Run(c *console) error {
	doc := struct {
		bench.Document
		files.Report
		Carrier stream.Carrier `json:"carrier"`
	}{Document: document("ibverbx cp", "")}
	began := time.Now()
	err := f.with(func(cfg stream.Config, own files.Config) (err error) {
		if f.TLSCA != "" {
			pem, err := os.ReadFile(f.TLSCA)
			pool := x509.NewCertPool()
			if err != nil || !pool.AppendCertsFromPEM(pem) {
				return usage("--tls-ca %s: no certificate: %v", f.TLSCA, err)
			}
			cfg.TLS = &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool}
		}
		own.Streams, own.Progress = f.Streams, func(r files.Report) {
			if s := int(time.Since(began).Seconds()); s%5 == 0 {
				c.complain("ibverbx: %d files, %.3f of %.3f GB, %.3f GB/s\n", r.Files, gb(r.Bytes+r.Kept),
					gb(r.Found), gb(r.Bytes)/float64(s))
			}
		}
		dial := func(ctx context.Context, host string) (net.Conn, error) {
			conn, err := stream.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(f.Port)), cfg)
			if err != nil {
				return nil, err
			}
			if doc.Carrier = conn.Carrier(); doc.Carrier.Reason != doc.Note {
				doc.Note = doc.Carrier.Reason
				c.complain("ibverbx: TCP carries the files: %s\n", doc.Note)
			}
			return conn, nil
		}
		last := len(f.Names) - 1
		doc.Report, err = files.Copy(c.ctx, dial, f.Names[:last], f.Names[last], own)
		if errors.Is(err, files.ErrNames) {
			err = usage("%v", err)
		}
		return err
	})
	err = interruptedOr(c, err)
	if doc.End(began, err); f.JSON {
		return errors.Join(err, writeJSON(c.out, doc))
	}
	if err == nil {
		_, err = fmt.Fprintf(c.out, "%d files, %.3f GB in %.2f s, %.3f GB/s, over %s%v; %.3f GB were there\n",
			doc.Files, gb(doc.Bytes), doc.Seconds, gb(doc.Bytes)/doc.Seconds, doc.Carrier.Kind,
			doc.Carrier.NICs, gb(doc.Kept))
	}
	return err
}
