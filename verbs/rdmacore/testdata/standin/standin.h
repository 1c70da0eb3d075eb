/*
 * A stand-in for libibverbs.so.1, for tests and benchmarks of package rdmacore on machines without an RDMA device.
 *
 * What it is: the functions that rdmacore uses, with libibverbs' names, compiled against the real <infiniband/verbs.h>. It is thus a
 * second reading of the structures, made by a C compiler. Its devices are null devices: a send completes at once and moves no data,
 * a receive stays posted until a control function completes it or the queue pair flushes. What it keeps from the real thing is what a
 * caller can get wrong: which error is reported in which way, when a slot of a queue is free again, that only the start of struct
 * ibv_port_attr is filled, that the destruction of an object waits until its events are acknowledged, that a failed completion has garbage
 * in most of its fields, that freed memory is not usable.
 *
 * What it is not: a fabric. Nothing is ever delivered to a peer, keys and addresses are not looked up, no timer runs.
 *
 * It complains (standin_complaints) about calls that libibverbs' manual forbids, even where a real driver would let them pass.
 * The functions whose names begin with standin_ control it (control.c, record.c, bench.c). With -DOLD it is as old as rdma-core 27: no
 * ibv_reg_mr_iova2, no ibv_query_gid_ex, no dma-buf.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The header wraps these in macros; here they are to be defined. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

#pragma GCC visibility push(hidden) /* what follows is shared by our files only */

enum {
	MAX_DEVICES = 96, PORTS = 2, GIDS = 8, VECTORS = 4,
	MAX_SGE = 30, MAX_INLINE = 1024, MAX_WR = 16384, MAX_CQE = 1 << 20,
	FIRST_QPN = 17, /* on every device, so that numbers of two devices collide */
};

/* ---- ledger.c: what goes wrong, and what is alive ---- */

extern pthread_mutex_t big; /* guards everything but the hot path; who holds it may take it again */

static inline void unlock(pthread_mutex_t **mu)
{
	pthread_mutex_unlock(*mu);
}

/* HOLD holds a lock to the end of the block. */
#define HOLD(mu) __attribute__((cleanup(unlock))) pthread_mutex_t *held_ = (pthread_mutex_lock(mu), (mu))

extern atomic_int complaints;
extern char complaint[256]; /* the first */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Calls of the hot path come through assembly of the package: the ABIs want the stack aligned to 16 bytes. */
#define ENTERED()                                                                                \
	do {                                                                                     \
		if ((uintptr_t)__builtin_frame_address(0) % 16)                                  \
			complain("%s: the stack is at %p", __func__, __builtin_frame_address(0)); \
	} while (0)

/* What a test has ordered. All zero is ordinary. */
extern struct orders {
	struct fault {
		char call[40];
		int err, times;
		/*
		 * Of the work request in its list, for posts; -1 fails after all were taken, as when the doorbell fails. For other
		 * calls, how many pass before.
		 */
		int index;
	} faults[16];
	atomic_int faults_armed;
	atomic_int error_style;			       /* of calls that return int: see fail */
	atomic_int sends_to_fail, status, vendor_err; /* how many of the next sends fail, and how */
	atomic_int record;
	int reuse; /* the memory of destroyed objects is used again at once */
} orders;

int ordered(const char *call, int *index);
#define UNSAID 10000 /* ordered of a post: it names the request that it does not take, and returns 0 all the same, as siw does */
int fail(int err);

enum kind { NOTHING, LIST, CONTEXT, PD, MR, CHANNEL, CQ, QP };

extern struct live {
	void *p;
	size_t size;
	enum kind kind;
	const void *needs[3]; /* objects that have to outlive it */
} *objects;
extern size_t objects_len;
extern const char *const kind_names[];

void *create(enum kind kind, size_t size, const void *need1, const void *need2, const void *need3);
int known(const char *call, const void *p, enum kind kind);
int begin(const char *call, const void *p, enum kind kind);
int removable(const char *call, const void *p, enum kind kind);
void bury(void *p);

/* ---- events.c: what the kernel keeps behind an event file descriptor ---- */

/* source counts the events of an object that were read, and knows where the header has those that were acknowledged. */
struct source {
	pthread_mutex_t *mu;
	pthread_cond_t *cond;
	uint32_t *acked, reported;
};

struct record {
	struct source *source; /* NULL for a port or the device */
	struct ibv_async_event event;
};

struct events {
	pthread_mutex_t mu;
	int fd, in; /* a pipe of records */
};

void events_init(struct events *q);
void events_destroy(struct events *q);
void events_put(struct events *q, struct source *source, struct ibv_async_event event);
void settle(const char *call, struct events *q, struct source *s);
enum kind subject(enum ibv_event_type type);

/* ---- device.c ---- */

extern struct device {
	struct ibv_device dev;
	struct port {
		struct ibv_port_attr attr;
		struct gid {
			union ibv_gid gid;
			uint32_t type, ifindex;
		} gids[GIDS];
	} ports[PORTS];
	uint32_t next_qpn, next_key, next_handle, last_cq;
} devices[MAX_DEVICES];
extern int device_count;

struct context {
	struct ibv_context ctx;
	struct events async;
};

void reset_devices(void);

static inline struct device *device_of(struct ibv_context *ctx)
{
	return (struct device *)ctx->device;
}

static inline struct events *async_of(struct ibv_context *ctx)
{
	return &((struct context *)ctx)->async;
}

/* ---- cq.c, qp.c ---- */

#define MAGIC 0x57a4d1b5u /* of a live one */

struct scq {
	struct ibv_cq cq;
	pthread_spinlock_t lock;
	struct entry {
		struct ibv_wc wc;
		struct queue *q;
		uint32_t upto; /* the slots of q are free up to here once this was polled */
	} *ring;
	uint32_t mask, head, tail; /* tail - head <= cq.cqe */
	int armed;		   /* 1 for solicited completions, 2 for all */
	int overrun, vector;
	uint32_t magic;
	struct source comp, async;
};

struct channel {
	struct ibv_comp_channel ch;
	struct events events;
};

struct queue {
	pthread_spinlock_t lock;
	struct scq *cq;
	struct slot {
		uint64_t wr_id;
		uint32_t opcode, bytes, flags;
	} *ring;
	uint32_t size;		   /* a power of two */
	uint32_t max_sge, posted;  /* done <= posted <= freed + size */
	uint32_t done;		   /* executed; freed <= done */
	atomic_uint freed;	   /* by polling their completions */
	int crossings;		   /* calls */
};

struct sqp {
	struct ibv_qp qp;
	struct queue sq, rq;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	atomic_int state; /* the truth; qp.state is what libibverbs last heard */
	atomic_int hold;  /* sends stay queued */
	uint32_t magic;
	struct source async;
};

uint32_t round_up(uint32_t n); /* to a power of two */

/* ---- post.c: the hot path ---- */

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int req_notify_cq(struct ibv_cq *cq, int solicited_only);
int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
int complete_recv(struct sqp *qp, struct ibv_wc wc, int solicited);
void become(struct sqp *qp, enum ibv_qp_state to);
void forget(struct queue *q);

/* ---- record.c, control.c ---- */

extern atomic_int seen_len;
void see_post(struct sqp *qp, const struct ibv_recv_wr *wr, const struct ibv_send_wr *send);
void see_modify(const struct ibv_qp_attr *attr, int mask);
void see_mr(uint64_t addr, uint64_t length, uint64_t offset, uint64_t iova, uint64_t fd, uint64_t access);

void *find(enum kind kind, int device, uint32_t number);

#pragma GCC visibility pop
