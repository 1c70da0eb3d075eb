package job

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"ibverbx/verbs"
)

// Job is this process's part in a job. You may call its methods from any goroutine. Of the
// collective calls, AllGather and Barrier, a process makes one at a time, and all processes make
// the same ones in the same order.
type Job struct {
	place  Place
	all    []Process
	member *member
	server *server // rank 0's; nil elsewhere

	collective chan struct{} // has a token while no goroutine is in a collective call
	seq        uint64        // counts collective calls; guarded by the token

	closing sync.Once
}

// Join finds the job that this process is part of, and returns once all of its processes have
// joined. A process that dies meanwhile ends Join for all with an error that names it; rank 0 stays
// two seconds more to tell latecomers. If some do not come within Config.Wait, or before ctx ends,
// the error names their ranks.
func Join(ctx context.Context, cfg Config) (*Job, error) {
	if ctx == nil {
		return nil, fmt.Errorf("job: join: %w: the context is nil", verbs.ErrInvalid)
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	place, err := Find(cfg)
	if err != nil {
		return nil, err
	}
	done, err := place.askPMIx(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer done()
	j := &Job{place: place, collective: make(chan struct{}, 1)}
	j.collective <- struct{}{}
	if err := j.join(ctx, &cfg); err != nil {
		return nil, fmt.Errorf("job: join as rank %d of %d: %w", place.Rank, place.Size, err)
	}
	return j, nil
}

// join meets the others.
func (j *Job) join(ctx context.Context, cfg *Config) (err error) {
	meeting, met := context.WithTimeoutCause(ctx, cfg.Wait, errWaited(cfg.Wait))
	defer met()
	// Once rank 0 is there, it decides when the wait is over, and names those who are missing.
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.Wait+lateness, errWaited(cfg.Wait+lateness))
	defer cancel()
	if j.place.Rank == 0 {
		if j.server, err = serve(meeting, &j.place, cfg); err != nil {
			return err
		}
		j.member, err = j.server.first(meeting)
	} else {
		j.member, err = dial(meeting, &j.place, cfg)
	}
	if err == nil {
		j.all, err = j.member.ready(ctx)
	}
	if j.server != nil {
		j.server.unwatch()
	}
	if err != nil && ctx.Err() != nil && j.server != nil {
		if who := j.server.missing(); who != "" {
			err = fmt.Errorf("%w: %s", err, who)
		}
	}
	if err != nil {
		if j.server != nil && !errors.Is(err, ErrAbsent) {
			j.server.linger(ctx)
		}
		j.end(err)
	}
	return err
}

// end gives up what join has begun, and tells the others.
func (j *Job) end(why error) {
	if j.member != nil {
		j.member.giveUp(why)
	}
	if j.server != nil {
		j.server.close()
	}
}

// Rank returns this process's number, from 0 on.
func (j *Job) Rank() int { return j.place.Rank }

// Size returns the number of processes in the job.
func (j *Job) Size() int { return j.place.Size }

// Place returns where this process's rank and the job's size come from.
func (j *Job) Place() Place { return j.place }

// Process describes the process of a rank.
func (j *Job) Process(rank int) Process { return j.all[rank] }

// LocalAddr and RemoteAddr return the ends of this process's connection to the others, for
// nics.Host.Reaching. On rank 0 it is a connection to a process on another host, if there is one. A
// job of one process has the loopback interface's.
func (j *Job) LocalAddr() net.Addr { return j.route().local }

// RemoteAddr is described with LocalAddr.
func (j *Job) RemoteAddr() net.Addr { return j.route().remote }

func (j *Job) route() route {
	if j.server != nil {
		return j.server.route()
	}
	return route{j.member.conn.LocalAddr(), j.member.conn.RemoteAddr()}
}

// AllGather passes mine to all processes, and returns what each has passed, in the order of their
// ranks. It is a shmem.Config.Exchange. Any error, even that of ctx, ends the job for all
// processes, because they are then out of step. If the deadline of ctx passes, the error is also
// ErrAbsent, and all processes learn which ranks have not entered the call; rank 0 has up to two
// seconds to say so. The result belongs to the caller.
func (j *Job) AllGather(ctx context.Context, mine []byte) ([][]byte, error) {
	return j.gather(ctx, "all-gather", mine)
}

// Barrier returns once all processes have called it. Errors are those of AllGather.
func (j *Job) Barrier(ctx context.Context) error {
	_, err := j.gather(ctx, "barrier", nil)
	return err
}

func (j *Job) gather(ctx context.Context, op string, mine []byte) ([][]byte, error) {
	if err := j.check(ctx, mine); err != nil {
		return nil, fmt.Errorf("job: %s: %w", op, err)
	}
	select {
	case <-j.collective:
	default:
		return nil, fmt.Errorf("job: %s: %w: another collective call is under way", op, verbs.ErrBusy)
	}
	defer func() { j.collective <- struct{}{} }()
	j.seq++
	rows, err := j.member.gather(ctx, op, j.seq, mine)
	if err != nil {
		return nil, fmt.Errorf("job: %s: %w", op, err)
	}
	return rows, nil
}

// check refuses invalid arguments of a call.
func (j *Job) check(ctx context.Context, value []byte) error {
	switch most := j.member.cfg.MaxValue; {
	case ctx == nil:
		return fmt.Errorf("%w: the context is nil", verbs.ErrInvalid)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(value) > most:
		return fmt.Errorf("%w: %d bytes: at most %d (Config.MaxValue)", verbs.ErrInvalid, len(value), most)
	}
	return nil
}

// maxKey is the longest key, in bytes.
const maxKey = 256

func checkKey(key string) error {
	if key == "" || len(key) > maxKey {
		return fmt.Errorf("%w: a key of %d bytes: must be 1 to %d", verbs.ErrInvalid, len(key), maxKey)
	}
	return nil
}

// Put sets a value in the store, which every process of the job can read. It returns once the value
// is stored.
func (j *Job) Put(ctx context.Context, key string, value []byte) error {
	err := j.check(ctx, value)
	if err == nil {
		err = checkKey(key)
	}
	if err == nil {
		_, err = j.member.ask(ctx, kindPut, key, value)
	}
	if err != nil {
		return fmt.Errorf("job: put %.40q: %w", key, err)
	}
	return nil
}

// Get returns a value of the store. If there is none yet, it waits for it until ctx ends.
func (j *Job) Get(ctx context.Context, key string) ([]byte, error) {
	err := j.check(ctx, nil)
	if err == nil {
		err = checkKey(key)
	}
	var value []byte
	if err == nil {
		value, err = j.member.ask(ctx, kindGet, key, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("job: get %.40q: %w", key, err)
	}
	return value, nil
}

// Done is closed when the job has failed: a process has died or given up. Err says which.
func (j *Job) Done() <-chan struct{} { return j.member.failed }

// Err returns why the job has failed; nil while it has not. If a process has failed, it is a
// [*RankError].
func (j *Job) Err() error {
	select {
	case <-j.member.failed:
		return j.member.why
	default:
		return nil
	}
}

// Context returns a context that ends when the job fails, with Err as its cause, or when ctx ends
// or the returned function is called. It is for calls that need the other processes but do not know
// the job, such as those of package shmem.
func (j *Job) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-j.member.failed:
			cancel(j.member.why)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}

// Fail ends the job for all processes, tells them why this one gives up, and closes the job. An
// error of package shmem says which PEs have kept a call waiting; if there are as many PEs as
// processes, the job then names those processes, and not this one, with ErrAbsent.
func (j *Job) Fail(why error) {
	j.closing.Do(func() {
		if late := j.late(why); late != nil {
			j.member.hangUp(late)
		}
		j.end(why)
	})
}

// late returns why the job fails if an error says which processes have kept this one waiting;
// otherwise nil.
func (j *Job) late(why error) error {
	var waited interface {
		Late() (ranks []int, size int)
	}
	if !errors.As(why, &waited) {
		return nil
	}
	own := j.all[j.place.Rank]
	switch late, size := waited.Late(); {
	case size != j.place.Size || len(late) == 0:
		return nil
	case len(late) == 1:
		absent := &said{fmt.Sprintf("it has kept %v waiting: %v", own, why), ErrAbsent}
		return &RankError{j.all[late[0]], absent}
	}
	return &said{fmt.Sprintf("%v has waited in vain: %v", own, why), ErrAbsent}
}

// Close leaves the job. It does not wait for the others to finish, but up to some seconds until
// they know that this process has left: their later collective calls fail with ErrLeft, and after
// rank 0 has left, all their calls fail. So programs end with a Barrier. You may call it again.
func (j *Job) Close() error {
	j.closing.Do(func() {
		j.member.leave()
		if j.server != nil {
			j.server.close()
		}
	})
	return nil
}
