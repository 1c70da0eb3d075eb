package metrics_test

import (
	"errors"
	"fmt"
	"log"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ibverbx"
	"ibverbx/metrics"
	"ibverbx/transport"
	"ibverbx/verbs/soft"
)

// A program shows its worker to Prometheus.
func Example() {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		log.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		log.Fatal(err)
	}
	w, err := transport.NewWorker(dom, transport.Config{})
	if err != nil {
		log.Fatal(err)
	}

	m := metrics.New(metrics.Config{})
	m.AddDevices(dom.Devices()...)
	if err := m.AddWorker("storage", w); err != nil {
		log.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m)
	handler := promhttp.HandlerFor(reg, promhttp.HandlerOpts{}) // http.Handle("/metrics", handler)

	page := httptest.NewRecorder()
	handler.ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(page.Body.String()) {
		if strings.HasPrefix(line, "ibverbx_endpoints") || strings.HasPrefix(line, "ibverbx_registered") {
			fmt.Print(line)
		}
	}
	if err := errors.Join(w.Close(), dom.Close(), fabric.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// ibverbx_endpoints{group="storage"} 0
	// ibverbx_registered_bytes{group="storage"} 2.097152e+06
}
