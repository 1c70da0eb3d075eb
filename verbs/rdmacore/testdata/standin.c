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
 * The functions whose names begin with standin_ control it. With -DOLD it is as old as rdma-core 31: no ibv_query_gid_ex, no dma-buf.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* The header wraps these in macros; here they are to be defined. */
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

enum {
	MAX_DEVICES = 96,
	PORTS = 2,
	GIDS = 8,
	VECTORS = 4,
	MAX_SGE = 30,
	MAX_INLINE = 1024,
	MAX_WR = 16384,
	MAX_CQE = 1 << 20,
	FIRST_QPN = 17, /* on every device, so that numbers of two devices collide */
};

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER; /* guards everything but the hot path */

/* ---- complaints ---- */

static atomic_int complaints;
static char complaint_text[256];

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
	static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
	va_list args;

	pthread_mutex_lock(&mu);
	va_start(args, format);
	if (atomic_fetch_add(&complaints, 1) == 0)
		vsnprintf(complaint_text, sizeof(complaint_text), format, args);
	va_end(args);
	pthread_mutex_unlock(&mu);
}

/* ---- faults to order ---- */

static struct fault {
	char call[40];
	int err, times;
	/*
	 * Of the work request in its list, for posts; -1 fails after all were taken, as when the doorbell fails. For other calls, how
	 * many pass before.
	 */
	int index;
} faults[16];
static atomic_int faults_armed;
static atomic_int error_style; /* of calls that return int: 0 returns an errno, 1 returns -1 and sets errno, 2 returns -errno */

/* ordered takes one failure of a call, if one was ordered. */
static int ordered(const char *call, int *index)
{
	int err = 0;

	if (!atomic_load_explicit(&faults_armed, memory_order_relaxed))
		return 0;
	static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&mu);
	for (struct fault *f = faults; f < faults + 16 && !err; f++)
		if (f->times > 0 && !strcmp(f->call, call)) {
			if (!index && f->index > 0) {
				f->index--;
				continue;
			}
			err = f->err;
			if (index)
				*index = f->index;
			if (--f->times == 0)
				atomic_fetch_sub(&faults_armed, 1);
		}
	pthread_mutex_unlock(&mu);
	return err;
}

static int fail(int err)
{
	switch (atomic_load(&error_style)) {
	case 1:
		errno = err;
		return -1;
	case 2:
		return -err;
	}
	return err;
}

#define FAIL_INT(call)                                \
	do {                                          \
		int err_ = ordered(call, NULL);       \
		if (err_)                             \
			return fail(err_);            \
	} while (0)
#define FAIL_NULL(call)                               \
	do {                                          \
		int err_ = ordered(call, NULL);       \
		if (err_) {                           \
			errno = err_;                 \
			return NULL;                  \
		}                                     \
	} while (0)

/* ---- live objects ---- */

enum kind { DEAD, LIST, CONTEXT, PD, MR, CHANNEL, CQ, QP, KINDS };
static const char *const kind_names[KINDS] = { "dead", "list", "context", "pd", "mr", "channel", "cq", "qp" };

static struct live {
	void *p;
	enum kind kind;
} *objects;
static size_t objects_len, objects_cap;

/* Memory of destroyed objects is kept for a while, scribbled over, so that late use is noticed. */
static struct {
	void *p;
} graveyard[256];
static unsigned buried, graves = 256; /* graves: how many are kept */

static void enlist(void *p, enum kind kind) /* with big held */
{
	if (objects_len == objects_cap) {
		objects_cap = objects_cap ? 2 * objects_cap : 64;
		objects = realloc(objects, objects_cap * sizeof(*objects));
	}
	objects[objects_len++] = (struct live){ p, kind };
}

static struct live *lookup(const void *p, enum kind kind) /* with big held */
{
	for (size_t i = objects_len; i-- > 0;)
		if (objects[i].p == p && objects[i].kind == kind)
			return &objects[i];
	return NULL;
}

static int known(const char *call, const void *p, enum kind kind) /* with big held */
{
	if (lookup(p, kind))
		return 1;
	complain("%s: %p is no live %s", call, p, kind_names[kind]);
	return 0;
}

static int alive(const char *call, const void *p, enum kind kind)
{
	pthread_mutex_lock(&big);
	int ok = known(call, p, kind);
	pthread_mutex_unlock(&big);
	if (!ok)
		errno = EBADF;
	return ok;
}

static void delist(void *p, enum kind kind) /* with big held */
{
	struct live *l = lookup(p, kind);

	if (l)
		*l = objects[--objects_len];
}

static void bury(void *p, size_t size, enum kind kind) /* with big held */
{
	delist(p, kind);
	memset(p, 0xdb, size);
	if (!graves) {
		free(p);
		return;
	}
	free(graveyard[buried % graves].p);
	graveyard[buried++ % graves].p = p;
}

/* ---- event queues: what the kernel keeps behind an event file descriptor ---- */

struct record {
	struct record *next;
	void *subject; /* the CQ or queue pair, NULL for a port or the device */
	struct ibv_async_event event;
	uint32_t *reported; /* counts what was read of the subject */
};

struct events {
	pthread_mutex_t mu;
	int fd; /* counts the records */
	struct record *head, **tail;
};

static void events_init(struct events *q)
{
	pthread_mutex_init(&q->mu, NULL);
	q->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	q->head = NULL;
	q->tail = &q->head;
}

static void events_put(struct events *q, void *subject, uint32_t *reported, const struct ibv_async_event *event)
{
	struct record *r = calloc(1, sizeof(*r));

	r->subject = subject;
	r->reported = reported;
	if (event)
		r->event = *event;
	pthread_mutex_lock(&q->mu);
	*q->tail = r;
	q->tail = &r->next;
	if (eventfd_write(q->fd, 1))
		complain("an event's file descriptor was closed by somebody else");
	pthread_mutex_unlock(&q->mu);
}

/* events_get takes the oldest record, waiting unless the file descriptor is non-blocking. */
static int events_get(struct events *q, struct record *out)
{
	for (;;) {
		pthread_mutex_lock(&q->mu);
		struct record *r = q->head;
		if (r) {
			eventfd_t one;
			q->head = r->next;
			if (!q->head)
				q->tail = &q->head;
			if (eventfd_read(q->fd, &one))
				complain("an event's file descriptor was closed or read by somebody else");
			if (r->reported)
				++*r->reported;
			*out = *r;
			free(r);
		}
		pthread_mutex_unlock(&q->mu);
		if (r)
			return 0;
		if (fcntl(q->fd, F_GETFL) & O_NONBLOCK) {
			errno = EAGAIN;
			return -1;
		}
		struct pollfd p = { .fd = q->fd, .events = POLLIN };
		if (poll(&p, 1, -1) < 0)
			return -1;
	}
}

/* events_purge forgets the records of a subject (all with NULL) that nobody has read. */
static void events_purge(struct events *q, void *subject)
{
	pthread_mutex_lock(&q->mu);
	for (struct record **p = &q->head; *p;) {
		struct record *r = *p;
		eventfd_t one;
		if (subject && r->subject != subject) {
			p = &r->next;
			continue;
		}
		*p = r->next;
		if (eventfd_read(q->fd, &one))
			complain("an event's file descriptor was closed or read by somebody else");
		free(r);
	}
	q->tail = &q->head;
	while (*q->tail)
		q->tail = &(*q->tail)->next;
	pthread_mutex_unlock(&q->mu);
}

static void events_destroy(struct events *q)
{
	events_purge(q, NULL);
	if (close(q->fd))
		complain("an event's file descriptor was closed by somebody else");
	pthread_mutex_destroy(&q->mu);
}

/* await_acks waits until all events that were read are acknowledged. The real one waits for ever. */
static void await_acks(const char *call, pthread_mutex_t *mu, pthread_cond_t *cond, const uint32_t *acked, uint32_t reported)
{
	struct timespec end;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 5;
	pthread_mutex_lock(mu);
	while (*acked != reported)
		if (pthread_cond_timedwait(cond, mu, &end)) {
			complain("%s: %u of %u events were acknowledged: libibverbs would wait for ever", call, *acked, reported);
			break;
		}
	pthread_mutex_unlock(mu);
}

/* ---- devices ---- */

struct gid {
	union ibv_gid gid;
	uint32_t type, ifindex;
};

static struct device { /* what lasts while processes come and go */
	struct {
		struct ibv_port_attr attr;
		struct gid gids[GIDS];
	} ports[PORTS];
	uint32_t next_qpn, next_key, next_handle, last_cq;
} devices[MAX_DEVICES];
static int device_count;

struct handle { /* what ibv_get_device_list lists */
	struct ibv_device dev;
	int index;
	int refs; /* its list and its contexts */
};

struct context {
	struct ibv_context ctx;
	struct events async;
	struct handle *handle;
	struct device *device;
	int children; /* PDs, CQs and channels */
};

struct pd {
	struct ibv_pd pd;
	int children; /* MRs and queue pairs */
};

struct channel {
	struct ibv_comp_channel ch;
	struct events events;
};

static void reset_devices(void)
{
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device *d = &devices[i];
		memset(d->ports, 0, sizeof(d->ports));
		if (!d->next_qpn)
			*d = (struct device){ .next_qpn = FIRST_QPN, .next_key = 1, .next_handle = 1 };
		for (int p = 0; p < PORTS; p++) {
			d->ports[p].attr = (struct ibv_port_attr){
				.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .gid_tbl_len = GIDS,
				.port_cap_flags = 0x04010000, .max_msg_sz = 1u << 30, .bad_pkey_cntr = 3, .qkey_viol_cntr = 4,
				.pkey_tbl_len = 1, .lid = 0x1200 + 16 * i + p + 1, .sm_lid = 7, .lmc = 1, .max_vl_num = 2, .sm_sl = 3,
				.subnet_timeout = 18, .init_type_reply = 9, .active_width = 2, .active_speed = 32, .phys_state = 5,
				.link_layer = IBV_LINK_LAYER_ETHERNET, .flags = 1, .port_cap_flags2 = 0xfefe,
			};
			struct gid *g = d->ports[p].gids;
			/* As mlx5 has it: link-local v1 and v2, then IPv4 v1 and v2. */
			for (int k = 0; k < 4; k++) {
				uint8_t *raw = g[k].gid.raw;
				if (k < 2) {
					raw[0] = 0xfe, raw[1] = 0x80;
					raw[14] = i + 1, raw[15] = p + 1;
				} else {
					raw[10] = raw[11] = 0xff;
					raw[12] = 10, raw[14] = i + 1, raw[15] = p + 1;
				}
				g[k].type = k % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1;
				g[k].ifindex = 1; /* lo */
			}
		}
	}
	device_count = 2;
}

__attribute__((constructor)) static void start(void)
{
	reset_devices();
}

static void release(struct handle *h) /* with big held */
{
	if (--h->refs == 0)
		bury(h, sizeof(*h), DEAD);
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
	FAIL_NULL("ibv_get_device_list");
	pthread_mutex_lock(&big);
	struct ibv_device **list = calloc(device_count + 1, sizeof(*list));
	for (int i = 0; i < device_count; i++) {
		struct handle *h = calloc(1, sizeof(*h));
		h->index = i;
		h->refs = 1;
		h->dev.node_type = IBV_NODE_CA;
		snprintf(h->dev.name, sizeof(h->dev.name), "standin%d", i);
		snprintf(h->dev.dev_name, sizeof(h->dev.dev_name), "uverbs%d", i);
		list[i] = &h->dev;
	}
	if (num_devices)
		*num_devices = device_count;
	enlist(list, LIST);
	pthread_mutex_unlock(&big);
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	size_t n = 0;

	pthread_mutex_lock(&big);
	if (known("ibv_free_device_list", list, LIST)) {
		for (; list[n]; n++)
			release((struct handle *)list[n]);
		bury(list, (n + 1) * sizeof(*list), LIST);
	}
	pthread_mutex_unlock(&big);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

static __be64 guid(int index)
{
	return htobe64(0x0002c90300a1b200 + index);
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	return guid(((struct handle *)device)->index);
}

/* ---- completion queues ---- */

struct sqp;

struct entry {
	struct ibv_wc wc;
	struct sqp *qp;
	atomic_uint *freed; /* the queue's slots are free up to here once this completion was polled */
	uint32_t upto;
};

struct scq {
	struct ibv_cq cq;
	pthread_spinlock_t lock;
	struct entry *ring;
	uint32_t mask, head, tail; /* tail - head <= cq.cqe */
	int armed;		   /* 1 for solicited completions, 2 for all */
	int overrun;
	uint32_t magic;
	int users; /* queue pairs, each direction; guarded by big */
	int vector;
	uint32_t comp_reported, async_reported; /* guarded by the event queue */
};

#define MAGIC 0x57a4d1b5u

static struct context *context_of(struct ibv_context *ctx)
{
	return (struct context *)ctx;
}

static void raise_cq(struct scq *cq, enum ibv_event_type type)
{
	struct ibv_async_event e = { .element.cq = &cq->cq, .event_type = type };

	events_put(&context_of(cq->cq.context)->async, cq, &cq->async_reported, &e);
}

/* What put did. */
enum { STORED = 1, SIGNAL = 2, OVERRUN = 4 };

/* put adds a completion, with the queue's lock held. */
static int put(struct scq *cq, const struct ibv_wc *wc, struct sqp *qp, atomic_uint *freed, uint32_t upto, int solicited)
{
	if (cq->overrun)
		return 0;
	if (cq->tail - cq->head == (uint32_t)cq->cq.cqe) {
		cq->overrun = 1;
		return OVERRUN;
	}
	struct entry *e = &cq->ring[cq->tail++ & cq->mask];
	e->wc = *wc;
	e->qp = qp;
	e->freed = freed;
	e->upto = upto;
	if (cq->armed == 2 || (cq->armed == 1 && (solicited || wc->status != IBV_WC_SUCCESS))) {
		cq->armed = 0;
		return STORED | SIGNAL;
	}
	return STORED;
}

/* announce raises the events that puts have called for, without the lock. */
static void announce(struct scq *cq, int did)
{
	if ((did & SIGNAL) && cq->cq.channel)
		events_put(&((struct channel *)cq->cq.channel)->events, cq, &cq->comp_reported, NULL);
	if (did & OVERRUN)
		raise_cq(cq, IBV_EVENT_CQ_ERR);
}

/* complete adds a completion. */
static void complete(struct scq *cq, const struct ibv_wc *wc, struct sqp *qp, atomic_uint *freed, uint32_t upto, int solicited)
{
	pthread_spin_lock(&cq->lock);
	int did = put(cq, wc, qp, freed, upto, solicited);
	pthread_spin_unlock(&cq->lock);
	announce(cq, did);
}

static int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct scq *cq = (struct scq *)ibcq;
	int got = 0, err = ordered("ibv_poll_cq", NULL);

	if (err)
		return err; /* what was ordered is the result */
	if (cq->magic != MAGIC || n < 1) {
		complain("ibv_poll_cq: %d entries of %s queue", n, cq->magic == MAGIC ? "a live" : "no live");
		return 0;
	}
	pthread_spin_lock(&cq->lock);
	for (; got < n && cq->head != cq->tail; got++) {
		const struct entry *e = &cq->ring[cq->head++ & cq->mask];
		wc[got] = e->wc;
		atomic_store_explicit(e->freed, e->upto, memory_order_release);
	}
	pthread_spin_unlock(&cq->lock);
	return got;
}

/* forget drops the completions of a queue pair that were not polled. */
static void forget(struct scq *cq, struct sqp *qp)
{
	pthread_spin_lock(&cq->lock);
	uint32_t keep = cq->head;
	for (uint32_t i = cq->head; i != cq->tail; i++)
		if (cq->ring[i & cq->mask].qp != qp)
			cq->ring[keep++ & cq->mask] = cq->ring[i & cq->mask];
	cq->tail = keep;
	pthread_spin_unlock(&cq->lock);
}

static int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct scq *cq = (struct scq *)ibcq;

	FAIL_INT("ibv_req_notify_cq");
	if (cq->magic != MAGIC) {
		complain("ibv_req_notify_cq: no live queue");
		return EINVAL;
	}
	pthread_spin_lock(&cq->lock);
	if (!solicited_only)
		cq->armed = 2;
	else if (!cq->armed)
		cq->armed = 1;
	pthread_spin_unlock(&cq->lock);
	return 0;
}

static uint32_t round_up(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

static struct scq *spare_cq; /* without graves the next CQ lies where the last one lay */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
{
	FAIL_NULL("ibv_create_cq");
	struct scq *cq = NULL;
	pthread_mutex_lock(&big);
	if (!known("ibv_create_cq", context, CONTEXT) || (channel && !known("ibv_create_cq", channel, CHANNEL)) || cqe < 1 ||
	    cqe > MAX_CQE || comp_vector < 0 || comp_vector >= context->num_comp_vectors ||
	    (channel && channel->context != context)) {
		errno = EINVAL;
	} else {
		cq = spare_cq ? spare_cq : malloc(sizeof(*cq));
		spare_cq = NULL;
		memset(cq, 0, sizeof(*cq));
		uint32_t size = round_up((uint32_t)cqe + 1); /* one less than a power of two, as mlx5 has it */
		cq->ring = calloc(size, sizeof(*cq->ring));
		cq->mask = size - 1;
		cq->magic = MAGIC;
		cq->vector = comp_vector;
		pthread_spin_init(&cq->lock, 0);
		cq->cq.context = context;
		cq->cq.channel = channel;
		cq->cq.cq_context = cq_context;
		cq->cq.cqe = (int)size - 1;
		struct device *d = context_of(context)->device;
		cq->cq.handle = d->last_cq = d->next_handle++;
		pthread_mutex_init(&cq->cq.mutex, NULL);
		pthread_cond_init(&cq->cq.cond, NULL);
		if (channel)
			channel->refcnt++;
		context_of(context)->children++;
		enlist(cq, CQ);
	}
	pthread_mutex_unlock(&big);
	return cq ? &cq->cq : NULL;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	FAIL_INT("ibv_destroy_cq");
	struct scq *cq = (struct scq *)ibcq;
	pthread_mutex_lock(&big);
	if (!known("ibv_destroy_cq", cq, CQ) || cq->users) {
		pthread_mutex_unlock(&big);
		return fail(EBUSY);
	}
	pthread_mutex_unlock(&big);
	if (ibcq->channel)
		events_purge(&((struct channel *)ibcq->channel)->events, cq);
	events_purge(&context_of(ibcq->context)->async, cq);
	await_acks("ibv_destroy_cq", &ibcq->mutex, &ibcq->cond, &ibcq->comp_events_completed, cq->comp_reported);
	await_acks("ibv_destroy_cq", &ibcq->mutex, &ibcq->cond, &ibcq->async_events_completed, cq->async_reported);
	pthread_mutex_lock(&big);
	if (ibcq->channel)
		ibcq->channel->refcnt--;
	context_of(ibcq->context)->children--;
	free(cq->ring);
	if (!graves && !spare_cq) {
		delist(cq, CQ);
		spare_cq = cq;
	} else {
		bury(cq, sizeof(*cq), CQ);
	}
	pthread_mutex_unlock(&big);
	if (!graves)
		usleep(100); /* before the caller knows, another thread has it */
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	FAIL_NULL("ibv_create_comp_channel");
	struct channel *c = NULL;
	pthread_mutex_lock(&big);
	if (known("ibv_create_comp_channel", context, CONTEXT)) {
		c = calloc(1, sizeof(*c));
		events_init(&c->events);
		c->ch.context = context;
		c->ch.fd = c->events.fd;
		context_of(context)->children++;
		enlist(c, CHANNEL);
	}
	pthread_mutex_unlock(&big);
	return c ? &c->ch : NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	FAIL_INT("ibv_destroy_comp_channel");
	int err = EBUSY;
	pthread_mutex_lock(&big);
	if (known("ibv_destroy_comp_channel", channel, CHANNEL) && channel->refcnt == 0) {
		struct channel *c = (struct channel *)channel;
		events_destroy(&c->events);
		context_of(channel->context)->children--;
		bury(c, sizeof(*c), CHANNEL);
		err = 0;
	}
	pthread_mutex_unlock(&big);
	return err ? fail(err) : 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct record r;
	int err = ordered("ibv_get_cq_event", NULL);

	if (err) {
		errno = err;
		return -1;
	}
	if (!alive("ibv_get_cq_event", channel, CHANNEL) || events_get(&((struct channel *)channel)->events, &r))
		return -1;
	*cq = &((struct scq *)r.subject)->cq;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	if (!alive("ibv_ack_cq_events", cq, CQ))
		return;
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += nevents;
	if (cq->comp_events_completed > ((struct scq *)cq)->comp_reported)
		complain("ibv_ack_cq_events: more events were acknowledged than read");
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* ---- queue pairs ---- */

struct slot {
	uint64_t wr_id;
	uint32_t opcode, bytes, flags;
};

struct queue {
	pthread_spinlock_t lock;
	struct slot *ring;
	uint32_t size;	     /* a power of two */
	uint32_t posted;     /* done <= posted <= freed + size */
	uint32_t done;	     /* executed; freed <= done */
	atomic_uint freed;   /* by polling their completions */
	uint64_t crossings;  /* calls */
};

struct sqp {
	struct ibv_qp qp;
	struct queue sq, rq;
	struct ibv_qp_cap cap;
	int sig_all;
	uint32_t magic;
	atomic_int state; /* the truth; qp.state is what libibverbs last heard */
	atomic_int hold;  /* sends stay queued */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	uint32_t async_reported;
};

static struct ibv_qp_attr last_attr;
static int last_mask;

/* The status of the next sends. */
static atomic_int ordered_status_left;
static atomic_uint ordered_status, ordered_vendor;

/* A work request as it was seen, in a form of our own: standin_test.go has the same. */
struct seen {
	uint64_t wr_id, remote_addr, compare_add, swap;
	uint32_t qp_num, is_recv, opcode, flags, imm, rkey, num_sge, inline_len;
	struct {
		uint64_t addr;
		uint32_t length, lkey;
	} sge[MAX_SGE];
	uint8_t inlined[MAX_INLINE];
};

static atomic_int recording;
static struct seen *seen;
static size_t seen_len, seen_cap;
static pthread_mutex_t seen_mu = PTHREAD_MUTEX_INITIALIZER;

static struct seen *see(void) /* with seen_mu held */
{
	if (seen_len == seen_cap) {
		seen_cap = seen_cap ? 2 * seen_cap : 64;
		seen = realloc(seen, seen_cap * sizeof(*seen));
	}
	memset(&seen[seen_len], 0, sizeof(*seen));
	return &seen[seen_len++];
}

static void see_sges(struct seen *s, const struct ibv_sge *list, int n)
{
	s->num_sge = n;
	for (int i = 0; i < n && i < MAX_SGE; i++) {
		s->sge[i].addr = list[i].addr;
		s->sge[i].length = list[i].length;
		s->sge[i].lkey = list[i].lkey;
	}
}

static void see_send(struct sqp *qp, const struct ibv_send_wr *wr)
{
	pthread_mutex_lock(&seen_mu);
	struct seen *s = see();
	s->wr_id = wr->wr_id;
	s->qp_num = qp->qp.qp_num;
	s->opcode = wr->opcode;
	s->flags = wr->send_flags;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND_WITH_IMM:
		s->imm = be32toh(wr->imm_data);
		break;
	default:;
	}
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		s->remote_addr = wr->wr.rdma.remote_addr;
		s->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		s->swap = wr->wr.atomic.swap;
		/* fall through */
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		s->remote_addr = wr->wr.atomic.remote_addr;
		s->compare_add = wr->wr.atomic.compare_add;
		s->rkey = wr->wr.atomic.rkey;
		break;
	default:;
	}
	see_sges(s, wr->sg_list, wr->num_sge);
	if (wr->send_flags & IBV_SEND_INLINE)
		for (int i = 0; i < wr->num_sge; i++) {
			memcpy(s->inlined + s->inline_len, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			s->inline_len += wr->sg_list[i].length;
		}
	pthread_mutex_unlock(&seen_mu);
}

static void see_recv(struct sqp *qp, const struct ibv_recv_wr *wr)
{
	pthread_mutex_lock(&seen_mu);
	struct seen *s = see();
	s->wr_id = wr->wr_id;
	s->qp_num = qp->qp.qp_num;
	s->is_recv = 1;
	see_sges(s, wr->sg_list, wr->num_sge);
	pthread_mutex_unlock(&seen_mu);
}

static const enum ibv_wc_opcode wc_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND, [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ, [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
};

/* failed is a completion that failed: what verbs leaves undefined is garbage. */
static struct ibv_wc failed(struct sqp *qp, uint64_t wr_id, uint32_t status, uint32_t vendor)
{
	return (struct ibv_wc){
		.wr_id = wr_id, .status = status, .opcode = 0x5eadbeef, .vendor_err = vendor, .byte_len = 0xdbdbdbdb,
		.imm_data = 0xdbdbdbdb, .qp_num = qp->qp.qp_num, .src_qp = 0xdbdbdbdb, .wc_flags = 0xffffffff,
		.pkey_index = 0xdbdb, .slid = 0xdbdb, .sl = 0xdb, .dlid_path_bits = 0xdb,
	};
}

static struct scq *send_cq(struct sqp *qp)
{
	return (struct scq *)qp->qp.send_cq;
}

static struct scq *recv_cq(struct sqp *qp)
{
	return (struct scq *)qp->qp.recv_cq;
}

/* flush ends what is queued, in the state ERR; the queue's lock is held. */
static void flush(struct sqp *qp, struct queue *q, struct scq *cq)
{
	for (; q->done != q->posted; q->done++) {
		struct ibv_wc wc = failed(qp, q->ring[q->done & (q->size - 1)].wr_id, IBV_WC_WR_FLUSH_ERR, 0xf9);
		complete(cq, &wc, qp, &q->freed, q->done + 1, 0);
	}
}

static void flush_recvs(struct sqp *qp)
{
	pthread_spin_lock(&qp->rq.lock);
	flush(qp, &qp->rq, recv_cq(qp));
	pthread_spin_unlock(&qp->rq.lock);
}

/* execute runs the send queue, whose lock is held. It returns 1 if a request failed, and the receive queue is to be flushed. */
static int execute(struct sqp *qp)
{
	struct queue *q = &qp->sq;
	struct scq *cq = send_cq(qp);
	int died = 0, did = 0;

	if (atomic_load_explicit(&qp->hold, memory_order_relaxed))
		return 0;
	if (atomic_load_explicit(&qp->state, memory_order_relaxed) == IBV_QPS_RTS) {
		pthread_spin_lock(&cq->lock);
		for (; q->done != q->posted && !died; q->done++) {
			const struct slot *s = &q->ring[q->done & (q->size - 1)];
			int put_did = STORED;
			if (atomic_load_explicit(&ordered_status_left, memory_order_relaxed) > 0 &&
			    atomic_fetch_sub(&ordered_status_left, 1) > 0) {
				struct ibv_wc wc = failed(qp, s->wr_id, atomic_load(&ordered_status), atomic_load(&ordered_vendor));
				put_did = put(cq, &wc, qp, &q->freed, q->done + 1, 0);
				died = 1;
			} else if (s->flags & IBV_SEND_SIGNALED) {
				struct ibv_wc wc = {
					.wr_id = s->wr_id, .status = IBV_WC_SUCCESS, .opcode = wc_opcodes[s->opcode],
					.byte_len = s->bytes, .qp_num = qp->qp.qp_num,
				};
				put_did = put(cq, &wc, qp, &q->freed, q->done + 1, 0);
			}
			did |= put_did;
			if (!(put_did & STORED)) /* an overrun CQ takes its queue pairs with it */
				died = 1;
		}
		pthread_spin_unlock(&cq->lock);
		announce(cq, did);
		if (died)
			atomic_store(&qp->state, IBV_QPS_ERR);
	}
	if (atomic_load_explicit(&qp->state, memory_order_relaxed) == IBV_QPS_ERR)
		flush(qp, q, cq);
	return died;
}

/* check_send says what is wrong with a send. */
static int check_send(struct sqp *qp, const struct ibv_send_wr *wr, uint32_t *bytes)
{
	uint64_t sum = 0;

	if ((uint32_t)wr->opcode >= sizeof(wc_opcodes) / sizeof(*wc_opcodes)) {
		complain("ibv_post_send: opcode %d", (int)wr->opcode);
		return EINVAL;
	}
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge) {
		complain("ibv_post_send: %d scatter-gather elements, the queue takes %u", wr->num_sge, qp->cap.max_send_sge);
		return EINVAL;
	}
	if (wr->num_sge && !wr->sg_list) {
		complain("ibv_post_send: %d scatter-gather elements at NULL", wr->num_sge);
		return EINVAL;
	}
	if (wr->send_flags & ~(uint32_t)(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE))
		complain("ibv_post_send: flags 0x%x", wr->send_flags);
	for (int i = 0; i < wr->num_sge; i++)
		sum += wr->sg_list[i].length;
	if ((wr->send_flags & IBV_SEND_INLINE) && sum > qp->cap.max_inline_data) {
		complain("ibv_post_send: %llu bytes inline, the queue takes %u", (unsigned long long)sum, qp->cap.max_inline_data);
		return EINVAL;
	}
	if ((wr->send_flags & IBV_SEND_INLINE) && wr->opcode >= IBV_WR_RDMA_READ) {
		complain("ibv_post_send: inline with opcode %d", (int)wr->opcode);
		return EINVAL;
	}
	*bytes = (uint32_t)sum;
	return 0;
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct sqp *qp = (struct sqp *)ibqp;
	struct queue *q = &qp->sq;
	int at = -2, fault = ordered("ibv_post_send", &at), err = 0, died;

	if (qp->magic != MAGIC) {
		complain("ibv_post_send: no live queue pair");
		*bad_wr = wr;
		return EINVAL;
	}
	pthread_spin_lock(&q->lock);
	q->crossings++;
	int state = atomic_load_explicit(&qp->state, memory_order_relaxed);
	if (state < IBV_QPS_RTS) {
		complain("ibv_post_send: in state %d, which mlx5 does not notice", state);
		err = EINVAL;
	}
	for (int i = 0; wr && !err; i++, wr = wr->next) {
		uint32_t bytes = 0;
		if (fault && i == at)
			err = fault;
		else if (q->posted - atomic_load_explicit(&q->freed, memory_order_acquire) == q->size)
			err = ENOMEM;
		else
			err = check_send(qp, wr, &bytes);
		if (err)
			break;
		if (atomic_load_explicit(&recording, memory_order_relaxed))
			see_send(qp, wr);
		q->ring[q->posted++ & (q->size - 1)] = (struct slot){
			wr->wr_id, wr->opcode, bytes, wr->send_flags | (qp->sig_all ? IBV_SEND_SIGNALED : 0),
		};
	}
	if (err)
		*bad_wr = wr;
	else if (fault && at == -1) { /* as rxe: all of it is in the queue, and the doorbell failed */
		pthread_spin_unlock(&q->lock);
		*bad_wr = NULL;
		return fault;
	}
	died = execute(qp);
	pthread_spin_unlock(&q->lock);
	if (died)
		flush_recvs(qp);
	return err;
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct sqp *qp = (struct sqp *)ibqp;
	struct queue *q = &qp->rq;
	int at = -2, fault = ordered("ibv_post_recv", &at), err = 0;

	if (qp->magic != MAGIC) {
		complain("ibv_post_recv: no live queue pair");
		*bad_wr = wr;
		return EINVAL;
	}
	pthread_spin_lock(&q->lock);
	q->crossings++;
	if (atomic_load(&qp->state) == IBV_QPS_RESET) {
		complain("ibv_post_recv: in RESET, which mlx5 does not notice");
		err = EINVAL;
	}
	for (int i = 0; wr && !err; i++, wr = wr->next) {
		if (fault && i == at)
			err = fault;
		else if (q->posted - atomic_load_explicit(&q->freed, memory_order_acquire) == q->size)
			err = ENOMEM;
		else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_recv_sge || (wr->num_sge && !wr->sg_list)) {
			complain("ibv_post_recv: %d scatter-gather elements, the queue takes %u", wr->num_sge, qp->cap.max_recv_sge);
			err = EINVAL;
		}
		if (err)
			break;
		if (atomic_load_explicit(&recording, memory_order_relaxed))
			see_recv(qp, wr);
		q->ring[q->posted++ & (q->size - 1)] = (struct slot){ .wr_id = wr->wr_id };
	}
	if (err)
		*bad_wr = wr;
	if (atomic_load(&qp->state) == IBV_QPS_ERR)
		flush(qp, q, recv_cq(qp));
	pthread_spin_unlock(&q->lock);
	return err;
}

static void queue_init(struct queue *q, uint32_t n)
{
	pthread_spin_init(&q->lock, 0);
	q->size = round_up(n ? n : 1);
	q->ring = calloc(q->size, sizeof(*q->ring));
}

static void queue_reset(struct queue *q)
{
	pthread_spin_lock(&q->lock);
	q->posted = q->done = 0;
	atomic_store(&q->freed, 0);
	pthread_spin_unlock(&q->lock);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	FAIL_NULL("ibv_create_qp");
	struct sqp *qp = NULL;
	struct ibv_qp_cap *cap = &init->cap;
	pthread_mutex_lock(&big);
	if (!known("ibv_create_qp", pd, PD) || !known("ibv_create_qp", init->send_cq, CQ) || !known("ibv_create_qp", init->recv_cq, CQ)) {
		errno = EINVAL;
	} else if (init->send_cq->context != pd->context || init->recv_cq->context != pd->context || init->srq ||
		   init->qp_type != IBV_QPT_RC || (init->sq_sig_all & ~1)) {
		complain("ibv_create_qp: srq %p, type %d, sq_sig_all %d, or a CQ of another context", (void *)init->srq, init->qp_type,
			 init->sq_sig_all);
		errno = EINVAL;
	} else if (cap->max_send_wr > MAX_WR || cap->max_recv_wr > MAX_WR || cap->max_send_sge > MAX_SGE || cap->max_recv_sge > MAX_SGE ||
		   cap->max_inline_data > MAX_INLINE) {
		errno = EINVAL;
	} else {
		qp = calloc(1, sizeof(*qp));
		queue_init(&qp->sq, cap->max_send_wr);
		queue_init(&qp->rq, cap->max_recv_wr);
		/* More than was asked for, as drivers do. */
		cap->max_send_wr = qp->sq.size;
		cap->max_recv_wr = qp->rq.size;
		cap->max_send_sge = cap->max_send_sge ? cap->max_send_sge : 1;
		cap->max_inline_data = (cap->max_inline_data + 31) & ~31u;
		qp->cap = *cap;
		qp->init = *init;
		qp->sig_all = init->sq_sig_all;
		qp->magic = MAGIC;
		qp->qp.context = pd->context;
		qp->qp.qp_context = init->qp_context;
		qp->qp.pd = pd;
		qp->qp.send_cq = init->send_cq;
		qp->qp.recv_cq = init->recv_cq;
		struct device *d = context_of(pd->context)->device;
		qp->qp.handle = d->next_handle++;
		qp->qp.qp_num = d->next_qpn++;
		qp->qp.state = IBV_QPS_RESET;
		qp->qp.qp_type = init->qp_type;
		pthread_mutex_init(&qp->qp.mutex, NULL);
		pthread_cond_init(&qp->qp.cond, NULL);
		((struct pd *)pd)->children++;
		send_cq(qp)->users++;
		recv_cq(qp)->users++;
		enlist(qp, QP);
	}
	pthread_mutex_unlock(&big);
	return qp ? &qp->qp : NULL;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	FAIL_INT("ibv_destroy_qp");
	struct sqp *qp = (struct sqp *)ibqp;
	if (!alive("ibv_destroy_qp", qp, QP))
		return fail(EINVAL);
	events_purge(&context_of(ibqp->context)->async, qp);
	await_acks("ibv_destroy_qp", &ibqp->mutex, &ibqp->cond, &ibqp->events_completed, qp->async_reported);
	forget(send_cq(qp), qp);
	forget(recv_cq(qp), qp);
	pthread_mutex_lock(&big);
	((struct pd *)ibqp->pd)->children--;
	send_cq(qp)->users--;
	recv_cq(qp)->users--;
	free(qp->sq.ring);
	free(qp->rq.ring);
	bury(qp, sizeof(*qp), QP);
	pthread_mutex_unlock(&big);
	return 0;
}

/* What the transitions on the way up demand. */
static const int demanded[IBV_QPS_RTS + 1] = {
	[IBV_QPS_INIT] = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	[IBV_QPS_RTR] = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER,
	[IBV_QPS_RTS] = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static void merge(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
#define TAKE(bit, field)          \
	if (mask & (bit))         \
	to->field = from->field
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
#undef TAKE
}

static int check_modify(struct sqp *qp, const struct ibv_qp_attr *attr, int mask)
{
	int from = atomic_load(&qp->state), to = mask & IBV_QP_STATE ? (int)attr->qp_state : from;

	if ((mask & IBV_QP_CUR_STATE) && (int)attr->cur_qp_state != from)
		return EINVAL;
	if (to > IBV_QPS_ERR || to == IBV_QPS_SQE || (to > IBV_QPS_RESET && to <= IBV_QPS_RTS && from < to && from != to - 1) ||
	    (from == IBV_QPS_ERR && to != IBV_QPS_RESET && to != IBV_QPS_ERR) || (to == IBV_QPS_SQD && from < IBV_QPS_RTS))
		return EINVAL;
	if (to <= IBV_QPS_RTS && from == to - 1 && (mask & demanded[to]) != demanded[to])
		return EINVAL;
	if (mask & IBV_QP_AV) {
		const struct ibv_ah_attr *ah = &attr->ah_attr;
		static const union ibv_gid none;
		if (ah->port_num < 1 || ah->port_num > PORTS || (ah->is_global && ah->grh.sgid_index >= GIDS))
			return EINVAL;
		struct device *d = context_of(qp->qp.context)->device;
		if (ah->is_global && !memcmp(&d->ports[ah->port_num - 1].gids[ah->grh.sgid_index].gid, &none, sizeof(none)))
			return EINVAL;
		if (!ah->is_global && d->ports[ah->port_num - 1].attr.link_layer == IBV_LINK_LAYER_ETHERNET)
			return EINVAL;
	}
	return 0;
}

/* become moves a queue pair to a state. */
static void become(struct sqp *qp, enum ibv_qp_state to)
{
	int flush_too;

	pthread_spin_lock(&qp->sq.lock);
	atomic_store(&qp->state, to);
	flush_too = to == IBV_QPS_ERR;
	if (to != IBV_QPS_RESET && execute(qp))
		flush_too = 1;
	pthread_spin_unlock(&qp->sq.lock);
	if (flush_too)
		flush_recvs(qp);
	if (to == IBV_QPS_RESET) {
		forget(send_cq(qp), qp);
		forget(recv_cq(qp), qp);
		queue_reset(&qp->sq);
		queue_reset(&qp->rq);
		memset(&qp->attr, 0, sizeof(qp->attr));
	}
}

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	FAIL_INT("ibv_modify_qp");
	struct sqp *qp = (struct sqp *)ibqp;
	int err = EINVAL;
	pthread_mutex_lock(&big);
	last_attr = *attr;
	last_mask = mask;
	if (known("ibv_modify_qp", qp, QP))
		err = check_modify(qp, attr, mask);
	if (!err) {
		merge(&qp->attr, attr, mask);
		if (mask & IBV_QP_STATE) {
			become(qp, attr->qp_state);
			ibqp->state = attr->qp_state;
		}
	}
	pthread_mutex_unlock(&big);
	return err ? fail(err) : 0;
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	FAIL_INT("ibv_query_qp");
	struct sqp *qp = (struct sqp *)ibqp;
	pthread_mutex_lock(&big);
	int ok = known("ibv_query_qp", qp, QP);
	if (ok) {
		*attr = qp->attr;
		attr->qp_state = attr->cur_qp_state = atomic_load(&qp->state);
		attr->cap = qp->cap;
		*init = qp->init;
		init->cap = qp->cap;
		if (mask & IBV_QP_STATE)
			ibqp->state = attr->qp_state;
	}
	pthread_mutex_unlock(&big);
	return ok ? 0 : fail(EINVAL);
}

/* ---- protection domains and memory ---- */

static struct {
	uint64_t addr, length, offset, iova, fd, access;
} last_mr;

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	FAIL_NULL("ibv_alloc_pd");
	struct pd *pd = NULL;
	pthread_mutex_lock(&big);
	if (known("ibv_alloc_pd", context, CONTEXT)) {
		pd = calloc(1, sizeof(*pd));
		pd->pd.context = context;
		pd->pd.handle = context_of(context)->device->next_handle++;
		context_of(context)->children++;
		enlist(pd, PD);
	}
	pthread_mutex_unlock(&big);
	return pd ? &pd->pd : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *ibpd)
{
	FAIL_INT("ibv_dealloc_pd");
	int err = EBUSY;
	pthread_mutex_lock(&big);
	if (known("ibv_dealloc_pd", ibpd, PD) && ((struct pd *)ibpd)->children == 0) {
		context_of(ibpd->context)->children--;
		bury(ibpd, sizeof(struct pd), PD);
		err = 0;
	}
	pthread_mutex_unlock(&big);
	return err ? fail(err) : 0;
}

static struct ibv_mr *new_mr(const char *call, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = NULL;

	pthread_mutex_lock(&big);
	if (!known(call, pd, PD)) {
		errno = EINVAL;
	} else if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		complain("%s: access 0x%x", call, access);
		errno = EINVAL;
	} else {
		mr = calloc(1, sizeof(*mr));
		struct device *d = context_of(pd->context)->device;
		mr->context = pd->context;
		mr->pd = pd;
		mr->addr = addr;
		mr->length = length;
		mr->handle = d->next_handle++;
		mr->lkey = d->next_key++ << 8 | 0x11;
		mr->rkey = mr->lkey ^ 0x80000000;
		((struct pd *)pd)->children++;
		enlist(mr, MR);
	}
	pthread_mutex_unlock(&big);
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	FAIL_NULL("ibv_reg_mr");
	last_mr.addr = (uintptr_t)addr;
	last_mr.length = length;
	last_mr.access = access;
	return new_mr("ibv_reg_mr", pd, addr, length, access);
}

#ifndef OLD
struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	FAIL_NULL("ibv_reg_dmabuf_mr");
	last_mr.offset = offset;
	last_mr.length = length;
	last_mr.iova = iova;
	last_mr.fd = fd;
	last_mr.access = access;
	if (fcntl(fd, F_GETFD) < 0)
		return NULL; /* EBADF */
	/* The offset is what libibverbs has in addr, and not the address that work requests use. */
	return new_mr("ibv_reg_dmabuf_mr", pd, (void *)(uintptr_t)offset, length, access);
}
#endif

int ibv_dereg_mr(struct ibv_mr *mr)
{
	FAIL_INT("ibv_dereg_mr");
	int err = EINVAL;
	pthread_mutex_lock(&big);
	if (known("ibv_dereg_mr", mr, MR)) {
		((struct pd *)mr->pd)->children--;
		bury(mr, sizeof(*mr), MR);
		err = 0;
	}
	pthread_mutex_unlock(&big);
	return err ? fail(err) : 0;
}

/* ---- contexts ---- */

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	FAIL_NULL("ibv_open_device");
	struct handle *h = (struct handle *)device;
	struct context *c = calloc(1, sizeof(*c));
	pthread_mutex_lock(&big);
	h->refs++;
	c->handle = h;
	c->device = &devices[h->index];
	events_init(&c->async);
	c->ctx.device = device;
	c->ctx.cmd_fd = eventfd(0, EFD_CLOEXEC);
	c->ctx.async_fd = c->async.fd;
	c->ctx.num_comp_vectors = VECTORS;
	c->ctx.ops.poll_cq = poll_cq;
	c->ctx.ops.req_notify_cq = req_notify_cq;
	c->ctx.ops.post_send = post_send;
	c->ctx.ops.post_recv = post_recv;
	enlist(c, CONTEXT);
	pthread_mutex_unlock(&big);
	return &c->ctx;
}

int ibv_close_device(struct ibv_context *context)
{
	FAIL_INT("ibv_close_device");
	int ok;
	pthread_mutex_lock(&big);
	ok = known("ibv_close_device", context, CONTEXT);
	if (ok) {
		struct context *c = context_of(context);
		if (c->children)
			complain("ibv_close_device: %d objects of it are alive", c->children);
		events_destroy(&c->async);
		if (close(context->cmd_fd))
			complain("the command file descriptor was closed by somebody else");
		release(c->handle);
		bury(c, sizeof(*c), CONTEXT);
	}
	pthread_mutex_unlock(&big);
	return ok ? 0 : fail(EINVAL);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	FAIL_INT("ibv_query_device");
	int index = context_of(context)->handle->index;
	memset(attr, 0x5a, sizeof(*attr)); /* every field that is not set below */
	strcpy(attr->fw_ver, "20.31.1014");
	attr->node_guid = guid(index);
	attr->sys_image_guid = guid(1000);
	attr->max_mr_size = 0x123456789abcd;
	attr->page_size_cap = 4096;
	attr->vendor_id = 0x02c9;
	attr->vendor_part_id = 4123;
	attr->hw_ver = 0x107;
	attr->max_qp = 131072;
	attr->max_qp_wr = MAX_WR;
	attr->max_sge = MAX_SGE;
	attr->max_sge_rd = 29;
	attr->max_cq = 16777216;
	attr->max_cqe = MAX_CQE;
	attr->max_mr = 16777215;
	attr->max_pd = 8388608;
	attr->max_qp_rd_atom = 16;
	attr->max_ee_rd_atom = 1;
	attr->max_res_rd_atom = 2097152;
	attr->max_qp_init_rd_atom = 15;
	attr->max_pkeys = 128;
	attr->local_ca_ack_delay = 12;
	attr->phys_port_cnt = PORTS;
	return 0;
}

static int port_ok(unsigned port)
{
	return port >= 1 && port <= PORTS;
}

/* The exported function has the structure as it was before port_cap_flags2, and writes no further. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	FAIL_INT("ibv_query_port");
	if (!port_ok(port))
		return fail(EINVAL);
	memcpy(attr, &context_of(context)->device->ports[port - 1].attr, offsetof(struct ibv_port_attr, port_cap_flags2));
	return 0;
}

static const struct gid *gid_at(struct ibv_context *context, unsigned port, unsigned index)
{
	if (!port_ok(port) || index >= GIDS)
		return NULL;
	return &context_of(context)->device->ports[port - 1].gids[index];
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	const struct gid *g = gid_at(context, port, (unsigned)index);
	int err = ordered("ibv_query_gid", NULL);

	if (!g || err) {
		errno = err ? err : EINVAL;
		return -1;
	}
	*gid = g->gid;
	return 0;
}

#ifndef OLD
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
		      size_t entry_size)
{
	static const union ibv_gid none;

	FAIL_INT("ibv_query_gid_ex");
	const struct gid *g = gid_at(context, port, index);
	if (!g || flags || entry_size != sizeof(*entry))
		return fail(EINVAL);
	if (!memcmp(&g->gid, &none, sizeof(none)))
		return fail(ENODATA);
	*entry = (struct ibv_gid_entry){ g->gid, index, port, g->type, g->ifindex };
	return 0;
}
#endif

int ibv_query_pkey(struct ibv_context *context, uint8_t port, int index, __be16 *pkey)
{
	(void)context;
	FAIL_INT("ibv_query_pkey");
	if (!port_ok(port) || index)
		return fail(EINVAL);
	*pkey = htobe16(0xffff);
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	struct record r;
	int err = ordered("ibv_get_async_event", NULL);

	if (err) {
		errno = err;
		return -1;
	}
	if (!alive("ibv_get_async_event", context, CONTEXT) || events_get(&context_of(context)->async, &r))
		return -1;
	memset(event, 0xdb, sizeof(*event)); /* as the kernel's answer, only what the type says means anything */
	*event = r.event;
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	pthread_mutex_t *mu;
	pthread_cond_t *cond;
	uint32_t *acked;

	pthread_mutex_lock(&big);
	if (lookup(event->element.cq, CQ) && event->event_type == IBV_EVENT_CQ_ERR) {
		struct ibv_cq *cq = event->element.cq;
		mu = &cq->mutex, cond = &cq->cond, acked = &cq->async_events_completed;
	} else if (lookup(event->element.qp, QP)) {
		struct ibv_qp *qp = event->element.qp;
		mu = &qp->mutex, cond = &qp->cond, acked = &qp->events_completed;
	} else {
		if (event->event_type == IBV_EVENT_CQ_ERR || (event->event_type >= IBV_EVENT_QP_FATAL &&
							      event->event_type <= IBV_EVENT_PATH_MIG_ERR))
			complain("ibv_ack_async_event: type %d of an object that is gone", event->event_type);
		pthread_mutex_unlock(&big);
		return;
	}
	pthread_mutex_unlock(&big);
	pthread_mutex_lock(mu);
	++*acked;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(mu);
}

int ibv_fork_init(void)
{
	FAIL_INT("ibv_fork_init");
	return 0;
}

const char *ibv_event_type_str(enum ibv_event_type event)
{
	return event == IBV_EVENT_PORT_ERR ? "port error" : "an event";
}

/* ---- controls ---- */

/* standin_reset makes everything as it was, but for live objects. */
void standin_reset(void)
{
	pthread_mutex_lock(&big);
	memset(faults, 0, sizeof(faults));
	atomic_store(&faults_armed, 0);
	atomic_store(&error_style, 0);
	atomic_store(&ordered_status_left, 0);
	atomic_store(&complaints, 0);
	atomic_store(&recording, 0);
	complaint_text[0] = 0;
	graves = 256;
	seen_len = 0;
	memset(&last_mr, 0, sizeof(last_mr));
	memset(&last_attr, 0, sizeof(last_attr));
	reset_devices();
	pthread_mutex_unlock(&big);
}

int standin_complaints(void)
{
	return atomic_load(&complaints);
}

const char *standin_complaint(void) /* the first one */
{
	return complaint_text;
}

/*
 * standin_set: "devices", how many there are; "record", whether work requests are recorded; "error_style"; "graves", how many destroyed
 * objects' memory is kept, 0 to use it again at once.
 */
int standin_set(const char *what, long value)
{
	pthread_mutex_lock(&big);
	int ok = 1;
	if (!strcmp(what, "devices") && value <= MAX_DEVICES)
		device_count = (int)value;
	else if (!strcmp(what, "record")) {
		atomic_store(&recording, (int)value);
		seen_len = 0;
	} else if (!strcmp(what, "graves") && value <= 256)
		graves = (unsigned)value;
	else if (!strcmp(what, "error_style"))
		atomic_store(&error_style, (int)value);
	else
		ok = 0;
	pthread_mutex_unlock(&big);
	return ok;
}

/* standin_set_port sets an attribute of a port. */
int standin_set_port(int device, int port, const char *what, long value)
{
	struct ibv_port_attr *a = &devices[device].ports[port - 1].attr;

	if (!strcmp(what, "state"))
		a->state = value;
	else if (!strcmp(what, "link_layer"))
		a->link_layer = value;
	else if (!strcmp(what, "width"))
		a->active_width = value;
	else if (!strcmp(what, "speed"))
		a->active_speed = value;
	else
		return 0;
	return 1;
}

/* standin_set_gid sets an entry of a GID table; sixteen zeros empty it. */
void standin_set_gid(int device, int port, int index, const uint8_t *gid, int type)
{
	struct gid *g = &devices[device].ports[port - 1].gids[index];

	memcpy(g->gid.raw, gid, 16);
	g->type = type;
}

/* standin_fail makes a call fail some times; struct fault says what index is. */
int standin_fail(const char *call, int err, int times, int index)
{
	pthread_mutex_lock(&big);
	for (struct fault *f = faults; f < faults + 16; f++)
		if (f->times == 0) {
			snprintf(f->call, sizeof(f->call), "%s", call);
			f->err = err;
			f->times = times;
			f->index = index;
			atomic_fetch_add(&faults_armed, 1);
			pthread_mutex_unlock(&big);
			return 1;
		}
	pthread_mutex_unlock(&big);
	return 0;
}

/* standin_status makes the next sends complete with a status, and their queue pairs fail. */
void standin_status(uint32_t status, uint32_t vendor_err, int sends)
{
	atomic_store(&ordered_status, status);
	atomic_store(&ordered_vendor, vendor_err);
	atomic_store(&ordered_status_left, sends);
}

int standin_live(const char *kind)
{
	int n = 0;

	pthread_mutex_lock(&big);
	for (size_t i = 0; i < objects_len; i++)
		if (!strcmp(kind, "all") || !strcmp(kind, kind_names[objects[i].kind]))
			n++;
	pthread_mutex_unlock(&big);
	return n;
}

/* find_qp and find_cq look for an object of a device; big is held. */
static struct sqp *find_qp(int device, uint32_t num)
{
	for (size_t i = 0; i < objects_len; i++) {
		struct sqp *qp = objects[i].p;
		if (objects[i].kind == QP && qp->qp.qp_num == num && context_of(qp->qp.context)->handle->index == device)
			return qp;
	}
	return NULL;
}

static struct scq *find_cq(int device, uint32_t handle)
{
	for (size_t i = 0; i < objects_len; i++) {
		struct scq *cq = objects[i].p;
		if (objects[i].kind == CQ && cq->cq.handle == handle && context_of(cq->cq.context)->handle->index == device)
			return cq;
	}
	return NULL;
}

uint32_t standin_last_cq(int device) /* the handle of the CQ that was created last */
{
	return devices[device].last_cq;
}

int standin_cq_vector(int device, uint32_t handle)
{
	pthread_mutex_lock(&big);
	struct scq *cq = find_cq(device, handle);
	int vector = cq ? cq->vector : -1;
	pthread_mutex_unlock(&big);
	return vector;
}

/* standin_unacked is how many events of a CQ were read and not acknowledged. */
int standin_unacked(int device, uint32_t handle)
{
	int n = -1;

	pthread_mutex_lock(&big);
	struct scq *cq = find_cq(device, handle);
	if (cq) {
		pthread_mutex_lock(&cq->cq.mutex);
		n = (int)(cq->comp_reported + cq->async_reported - cq->cq.comp_events_completed - cq->cq.async_events_completed);
		pthread_mutex_unlock(&cq->cq.mutex);
	}
	pthread_mutex_unlock(&big);
	return n;
}

/*
 * standin_complete_recv completes the oldest receive of a queue pair, as a message from the peer does. with_imm: 0 for a SEND, 1 for a
 * SEND with immediate, 2 for a write with immediate. It returns 0 if no receive is posted.
 */
int standin_complete_recv(int device, uint32_t qp_num, uint32_t bytes, uint32_t imm, int with_imm, int solicited)
{
	int ok = 0;

	pthread_mutex_lock(&big);
	struct sqp *qp = find_qp(device, qp_num);
	if (qp) {
		struct queue *q = &qp->rq;
		pthread_spin_lock(&q->lock);
		if (q->done != q->posted) {
			struct ibv_wc wc = {
				.wr_id = q->ring[q->done & (q->size - 1)].wr_id, .status = IBV_WC_SUCCESS,
				.opcode = with_imm == 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .byte_len = bytes,
				.imm_data = htobe32(imm), .qp_num = qp_num, .src_qp = 0x424242,
				.wc_flags = with_imm ? IBV_WC_WITH_IMM : 0,
			};
			q->done++;
			complete(recv_cq(qp), &wc, qp, &q->freed, q->done, solicited);
			ok = 1;
		}
		pthread_spin_unlock(&q->lock);
	}
	pthread_mutex_unlock(&big);
	return ok;
}

/* standin_hold keeps the sends of a queue pair in its queue; letting go executes them. */
int standin_hold(int device, uint32_t qp_num, int on)
{
	pthread_mutex_lock(&big);
	struct sqp *qp = find_qp(device, qp_num);
	if (qp) {
		atomic_store(&qp->hold, on);
		if (!on)
			become(qp, atomic_load(&qp->state));
	}
	pthread_mutex_unlock(&big);
	return !!qp;
}

/* standin_kill_qp moves a queue pair to ERR, as hardware does by itself. */
int standin_kill_qp(int device, uint32_t qp_num)
{
	pthread_mutex_lock(&big);
	struct sqp *qp = find_qp(device, qp_num);
	if (qp)
		become(qp, IBV_QPS_ERR);
	pthread_mutex_unlock(&big);
	return !!qp;
}

/* standin_crossings is how often a queue pair was posted to. */
long standin_crossings(int device, uint32_t qp_num, int recv)
{
	long n = -1;

	pthread_mutex_lock(&big);
	struct sqp *qp = find_qp(device, qp_num);
	if (qp)
		n = (long)(recv ? qp->rq.crossings : qp->sq.crossings);
	pthread_mutex_unlock(&big);
	return n;
}

/*
 * standin_raise raises an asynchronous event; number is a port, a queue pair's number or a CQ's handle, as the type needs. It says how
 * many contexts got it.
 */
int standin_raise(int device, int type, uint32_t number)
{
	int told = 0;

	pthread_mutex_lock(&big);
	if (type == IBV_EVENT_CQ_ERR) {
		struct scq *cq = find_cq(device, number);
		if (cq) {
			raise_cq(cq, type);
			told = 1;
		}
	} else if ((type >= IBV_EVENT_QP_FATAL && type <= IBV_EVENT_PATH_MIG_ERR) || type == IBV_EVENT_QP_LAST_WQE_REACHED) {
		struct sqp *qp = find_qp(device, number);
		if (qp) {
			struct ibv_async_event e = { .element.qp = &qp->qp, .event_type = type };
			events_put(&context_of(qp->qp.context)->async, qp, &qp->async_reported, &e);
			told = 1;
		}
	} else {
		struct ibv_async_event e = { .element.port_num = (int)number, .event_type = type };
		for (size_t i = 0; i < objects_len; i++) {
			struct context *c = objects[i].p;
			if (objects[i].kind == CONTEXT && c->handle->index == device) {
				events_put(&c->async, NULL, NULL, &e);
				told++;
			}
		}
	}
	pthread_mutex_unlock(&big);
	return told;
}

int standin_seen(void)
{
	pthread_mutex_lock(&seen_mu);
	int n = (int)seen_len;
	pthread_mutex_unlock(&seen_mu);
	return n;
}

int standin_get_seen(int i, struct seen *out, uint32_t size)
{
	int ok = 0;

	pthread_mutex_lock(&seen_mu);
	if (i >= 0 && (size_t)i < seen_len && size == sizeof(*out)) {
		*out = seen[i];
		ok = 1;
	}
	pthread_mutex_unlock(&seen_mu);
	return ok;
}

/* The last ibv_modify_qp, in a form of our own: standin_test.go has the same. */
struct modified {
	uint32_t mask, qp_state, cur_qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, access, pkey_index, port_num, timeout, retry_cnt,
		rnr_retry, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	uint32_t flow_label, sgid_index, hop_limit, traffic_class, dlid, sl, src_path_bits, static_rate, is_global, ah_port;
	uint8_t dgid[16];
};

int standin_last_modify(struct modified *m, uint32_t size)
{
	if (size != sizeof(*m))
		return 0;
	pthread_mutex_lock(&big);
	const struct ibv_qp_attr *a = &last_attr;
	const struct ibv_ah_attr *ah = &a->ah_attr;
	*m = (struct modified){
		last_mask, a->qp_state, a->cur_qp_state, a->path_mtu, a->rq_psn, a->sq_psn, a->dest_qp_num, a->qp_access_flags,
		a->pkey_index, a->port_num, a->timeout, a->retry_cnt, a->rnr_retry, a->max_rd_atomic, a->max_dest_rd_atomic,
		a->min_rnr_timer, ah->grh.flow_label, ah->grh.sgid_index, ah->grh.hop_limit, ah->grh.traffic_class, ah->dlid, ah->sl,
		ah->src_path_bits, ah->static_rate, ah->is_global, ah->port_num, { 0 },
	};
	memcpy(m->dgid, ah->grh.dgid.raw, 16);
	pthread_mutex_unlock(&big);
	return 1;
}

/* standin_last_mr: the last registration's address, length, offset, iova, file descriptor and access. */
void standin_last_mr(uint64_t out[6])
{
	memcpy(out, &last_mr, sizeof(last_mr));
}
