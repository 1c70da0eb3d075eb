/* Events: a queue of them behind a file descriptor, and the wait for their acknowledgement. */
#include "standin.h"
#include <fcntl.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

void events_init(struct events *q)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) || fcntl(ends[1], F_SETFL, O_NONBLOCK))
		abort();
	pthread_mutex_init(&q->mu, NULL);
	q->fd = ends[0];
	q->in = ends[1];
}

void events_destroy(struct events *q)
{
	if (close(q->in) | close(q->fd))
		complain("an event's file descriptor was closed by somebody else");
}

static void put(struct events *q, const struct record *r)
{
	if (write(q->in, r, sizeof(*r)) != sizeof(*r))
		complain("an event was lost: nobody reads them");
}

void events_put(struct events *q, struct source *source, struct ibv_async_event event)
{
	HOLD(&q->mu);
	put(q, &(struct record){ source, event });
}

/* events_get takes the oldest event. A read that waits would cost its caller a thread. */
static int events_get(struct events *q, struct ibv_async_event *event)
{
	struct record r;

	if (!(fcntl(q->fd, F_GETFL) & O_NONBLOCK))
		complain("an event's file descriptor is blocking");
	HOLD(&q->mu);
	if (read(q->fd, &r, sizeof(r)) != sizeof(r))
		return -1;
	if (r.source)
		r.source->reported++;
	*event = r.event;
	return 0;
}

/* purge forgets the events of a source that nobody has read. */
static void purge(struct events *q, struct source *s)
{
	struct record r;
	int left = 0;

	HOLD(&q->mu);
	for (ioctl(q->fd, FIONREAD, &left); left > 0; left -= (int)sizeof(r)) {
		if (read(q->fd, &r, sizeof(r)) != sizeof(r))
			complain("an event's file descriptor was read by somebody else");
		else if (r.source != s)
			put(q, &r);
	}
}

/* settle ends a source: it waits until all events that were read are acknowledged. The real one waits for ever. */
void settle(const char *call, struct events *q, struct source *s)
{
	struct timespec end;
	int err = 0;

	purge(q, s);
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += 5;
	HOLD(s->mu);
	while (*s->acked != s->reported && !err)
		err = pthread_cond_timedwait(s->cond, s->mu, &end);
	if (err)
		complain("%s: %u of %u events were acknowledged: libibverbs would wait for ever", call, *s->acked, s->reported);
}

static void acknowledge(const char *call, struct source *s, uint32_t n)
{
	HOLD(s->mu);
	*s->acked += n;
	if (*s->acked > s->reported)
		complain("%s: more events were acknowledged than read", call);
	pthread_cond_signal(s->cond);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	struct ibv_async_event e;

	if ((errno = begin(__func__, channel, CHANNEL)) || events_get(&((struct channel *)channel)->events, &e))
		return -1;
	*cq = e.element.cq;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
{
	if (known(__func__, cq, CQ))
		acknowledge(__func__, &((struct scq *)cq)->comp, nevents);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return (errno = begin(__func__, context, CONTEXT)) ? -1 : events_get(async_of(context), event);
}

/* subject is the kind of object that an asynchronous event is about; NOTHING for a port or the device. */
enum kind subject(enum ibv_event_type type)
{
	if (type == IBV_EVENT_CQ_ERR)
		return CQ;
	return type <= IBV_EVENT_PATH_MIG_ERR || type == IBV_EVENT_QP_LAST_WQE_REACHED ? QP : NOTHING;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	enum kind kind = subject(event->event_type);
	void *p = event->element.cq;

	if (kind != NOTHING && known(__func__, p, kind))
		acknowledge(__func__, kind == CQ ? &((struct scq *)p)->async : &((struct sqp *)p)->async, 1);
}
