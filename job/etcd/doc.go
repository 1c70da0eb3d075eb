// Package etcd lets the processes of a job find each other through etcd, so that you need not name
// the address at which rank 0 listens. It is a separate module, so that only its users get etcd's
// client among their dependencies.
//
//	store, err := etcd.Open(ctx, etcd.Config{Endpoints: []string{"etcd:2379"}})
//	defer store.Close()
//	j, err := job.Join(ctx, job.Config{Rank: rank, Size: 4, Job: "sums", Store: store})
//
// If a launcher has numbered the processes, leave out Rank and Size. If none has, but you know the
// number of processes, etcd assigns the ranks:
//
//	rank, err := store.Rank(ctx, "sums", 4)
//
// # What it leaves in etcd
//
// One key per job, Config.Prefix and "/ibverbx/job/NAME", with the address of rank 0, and one for
// each assigned rank, "/ibverbx/rank/NAME/RANK". Each is bound to a lease of the process that has
// put it: it disappears when the process closes its Store, or Config.Lease after the process has
// died. If a Store loses its lease, for instance because etcd was unreachable for longer, it gets
// another and puts its keys again. Join needs them until it has returned; the job does not need
// them at all and does not notice the end of etcd.
//
// # When etcd does not answer
//
// [Open] fails after Config.Wait. Later calls wait for etcd until their context ends, and then
// report the reason; Config.Logger gets it at once. Join ends such a wait after job.Config.Wait.
//
// # Who may use it
//
// Anyone who can write those keys decides where the processes connect, so protect etcd as you
// protect the job: Config.TLS, Username. These protect the connection to etcd; job.Config.TLS
// protects the connections of the processes.
package etcd
