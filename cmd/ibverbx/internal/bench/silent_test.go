package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/cmd/ibverbx/internal/rendezvous"
)

// TestFollowSilentClient greets and then says nothing: what is to be measured has to come as soon
// as the greeting, and the goodbye does not delay an end that has others to serve.
func TestFollowSilentClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			hello := binary.BigEndian.AppendUint32([]byte("\x89ibverbx"), ProtocolVersion)
			if _, err := there.Write(hello); err != nil {
				t.Error(err)
			}
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		conn, err := rendezvous.Start(t.Context(), here, rendezvous.Config{Version: ProtocolVersion,
			Timeout: 30 * time.Second, Greeting: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		parted := make(chan struct{})
		start := time.Now()
		_, err = Follow(context.Background(), &Half{Conn: conn, Aside: func(goodbye func()) {
			go func() {
				defer close(parted)
				goodbye()
			}()
		}}, observer{})
		if took := time.Since(start); took != 5*time.Second || !errors.Is(err, rendezvous.ErrTimeout) {
			t.Errorf("after %v: %v", took, err)
		}
		<-parted
		if took := time.Since(start); took != 7*time.Second || conn.Err() == nil {
			t.Errorf("the goodbye is over after %v, and the conversation: %v", took, conn.Err())
		}
		there.Close()
	})
}
