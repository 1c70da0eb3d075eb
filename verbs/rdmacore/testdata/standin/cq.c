/* Completion queues and completion channels, but for polling. */
#include "standin.h"
#include <unistd.h>

uint32_t round_up(uint32_t n)
{
	uint32_t p = 1;

	while (p < n)
		p <<= 1;
	return p;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector)
{
	HOLD(&big);
	if ((errno = begin(__func__, context, CONTEXT)))
		return NULL;
	if (cqe < 1 || cqe > MAX_CQE || comp_vector < 0 || comp_vector >= VECTORS ||
	    (channel && (!known(__func__, channel, CHANNEL) || channel->context != context))) {
		errno = EINVAL;
		return NULL;
	}
	struct device *d = device_of(context);
	struct scq *cq = create(CQ, sizeof(*cq), context, channel, NULL);
	uint32_t size = round_up((uint32_t)cqe + 1); /* one less than a power of two, as mlx5 has it */
	*cq = (struct scq){
		.cq = { .context = context, .channel = channel, .cq_context = cq_context, .handle = d->next_handle++, .cqe = (int)size - 1 },
		.ring = calloc(size, sizeof(*cq->ring)), .mask = size - 1, .magic = MAGIC, .vector = comp_vector,
		.comp = { &cq->cq.mutex, &cq->cq.cond, &cq->cq.comp_events_completed, 0 },
		.async = { &cq->cq.mutex, &cq->cq.cond, &cq->cq.async_events_completed, 0 },
	};
	d->last_cq = cq->cq.handle;
	pthread_spin_init(&cq->lock, 0);
	pthread_mutex_init(&cq->cq.mutex, NULL);
	pthread_cond_init(&cq->cq.cond, NULL);
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *ibcq)
{
	struct scq *cq = (struct scq *)ibcq;
	int err = removable(__func__, cq, CQ);

	if (err)
		return fail(err);
	if (ibcq->channel)
		settle(__func__, &((struct channel *)ibcq->channel)->events, &cq->comp);
	settle(__func__, async_of(ibcq->context), &cq->async);
	free(cq->ring);
	bury(cq);
	if (orders.reuse)
		usleep(100); /* before the caller knows, another thread has it */
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	HOLD(&big);
	if ((errno = begin(__func__, context, CONTEXT)))
		return NULL;
	struct channel *c = create(CHANNEL, sizeof(*c), context, NULL, NULL);
	events_init(&c->events);
	c->ch = (struct ibv_comp_channel){ .context = context, .fd = c->events.fd };
	return &c->ch;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	HOLD(&big);
	int err = removable(__func__, channel, CHANNEL);
	if (!err) {
		events_destroy(&((struct channel *)channel)->events);
		bury(channel);
	}
	return fail(err);
}
