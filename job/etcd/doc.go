// Package etcd has the processes of a job find each other through etcd, which all of them reach
// already: nobody has to say at which address rank 0 listens. It is a module of its own, so that
// only who uses it has etcd's client among its modules.
//
//	store, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{"etcd:2379"}})
//	defer store.Close()
//	j, err := job.Join(ctx, job.Config{Rank: rank, Size: 4, Job: "sums", Store: store})
//
// Where a launcher has numbered the processes, leave out Rank and Size. Where nobody has, but their
// number is known, etcd hands out the ranks:
//
//	rank, err := store.Rank(ctx, "sums", 4)
//
// # What it leaves in etcd
//
// One key of a job, Config.Prefix and "/ibverbx/job/NAME", with the address of rank 0; and one for
// each rank that was handed out, "/ibverbx/rank/NAME/RANK". All are bound to a lease of the process
// that has put them: they are gone when it closes its Store, or Config.Lease after it has died. A
// Store that loses its lease, as when etcd was not there for longer, takes another and puts them
// again. Join needs them until it has returned, and the job not at all: it does not notice the end
// of etcd.
//
// # When etcd does not answer
//
// [Open] says so after Config.Wait. Later, calls wait for it until their context ends, and then say
// what stands between; Config.Logger is told at once. Join ends such a wait after job.Config.Wait.
//
// # Who may use it
//
// Whoever can write those keys decides where the processes connect to, so etcd has to be guarded as
// the job is: Config.TLS, Username. That protects the conversation with etcd; job.Config.TLS
// protects those of the processes.
package etcd
