/* The hot path: posting, what becomes of a request, and polling. */
#include "standin.h"

/* ---- completions ---- */

/* What put did. */
enum { STORED = 1, SIGNAL = 2, OVERRUN = 4 };

/* put ends the oldest request of a queue with a completion. The locks of the queue and of its CQ are held. */
static int put(struct queue *q, const struct ibv_wc *wc, int solicited)
{
	struct scq *cq = q->cq;

	q->done++;
	if (cq->overrun)
		return 0;
	if (cq->tail - cq->head == (uint32_t)cq->cq.cqe) {
		cq->overrun = 1;
		return OVERRUN;
	}
	cq->ring[cq->tail++ & cq->mask] = (struct entry){ *wc, q, q->done };
	if (cq->armed == 2 || (cq->armed == 1 && (solicited || wc->status != IBV_WC_SUCCESS))) {
		cq->armed = 0;
		return STORED | SIGNAL;
	}
	return STORED;
}

/* announce raises the events that puts have called for, without the CQ's lock. */
static void announce(struct scq *cq, int did)
{
	struct ibv_async_event e = { .element.cq = &cq->cq, .event_type = IBV_EVENT_CQ_ERR };

	if ((did & SIGNAL) && cq->cq.channel)
		events_put(&((struct channel *)cq->cq.channel)->events, &cq->comp, e);
	if (did & OVERRUN)
		events_put(async_of(cq->cq.context), &cq->async, e);
}

/* forget drops the completions of a queue that were not polled. */
void forget(struct queue *q)
{
	struct scq *cq = q->cq;

	pthread_spin_lock(&cq->lock);
	uint32_t keep = cq->head;
	for (uint32_t i = cq->head; i != cq->tail; i++)
		if (cq->ring[i & cq->mask].q != q)
			cq->ring[keep++ & cq->mask] = cq->ring[i & cq->mask];
	cq->tail = keep;
	pthread_spin_unlock(&cq->lock);
}

int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct scq *cq = (struct scq *)ibcq;
	int got = 0, err = ordered("ibv_poll_cq", NULL);

	ENTERED();
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
		atomic_store_explicit(&e->q->freed, e->upto, memory_order_release);
	}
	pthread_spin_unlock(&cq->lock);
	return got;
}

int req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct scq *cq = (struct scq *)ibcq;
	int err = ordered("ibv_req_notify_cq", NULL);

	ENTERED();
	if (cq->magic != MAGIC) {
		complain("ibv_req_notify_cq: no live queue");
		err = EINVAL;
	}
	if (err)
		return fail(err);
	pthread_spin_lock(&cq->lock);
	if (!solicited_only)
		cq->armed = 2;
	else if (!cq->armed)
		cq->armed = 1;
	pthread_spin_unlock(&cq->lock);
	return 0;
}

/* ---- the way of a request ---- */

static int in_state(struct sqp *qp, int state)
{
	return atomic_load_explicit(&qp->state, memory_order_relaxed) == state;
}

static struct slot *oldest(struct queue *q)
{
	return &q->ring[q->done & (q->size - 1)];
}

/* fail_oldest completes a queue's oldest request with garbage in what verbs leaves undefined. */
static int fail_oldest(struct sqp *qp, struct queue *q, int status, int vendor_err)
{
	struct ibv_wc wc;

	memset(&wc, 0xdb, sizeof(wc));
	wc.wr_id = oldest(q)->wr_id;
	wc.status = status;
	wc.vendor_err = vendor_err;
	wc.qp_num = qp->qp.qp_num;
	return put(q, &wc, 0);
}

/* flush ends what is queued if the queue pair is in ERR. The queue's lock is held. */
static void flush(struct sqp *qp, struct queue *q)
{
	int did = 0;

	if (!in_state(qp, IBV_QPS_ERR))
		return;
	pthread_spin_lock(&q->cq->lock);
	while (q->done != q->posted)
		did |= fail_oldest(qp, q, IBV_WC_WR_FLUSH_ERR, 0xf9);
	pthread_spin_unlock(&q->cq->lock);
	announce(q->cq, did);
}

static void flush_recvs(struct sqp *qp)
{
	if (!in_state(qp, IBV_QPS_ERR))
		return;
	pthread_spin_lock(&qp->rq.lock);
	flush(qp, &qp->rq);
	pthread_spin_unlock(&qp->rq.lock);
}

static const enum ibv_wc_opcode wc_opcodes[] = {
	[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE, [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
	[IBV_WR_SEND] = IBV_WC_SEND, [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
	[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ, [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
};

/* execute_oldest runs a send. It returns what put did. */
static int execute_oldest(struct sqp *qp)
{
	struct queue *q = &qp->sq;
	const struct slot *s = oldest(q);

	if (atomic_load_explicit(&orders.sends_to_fail, memory_order_relaxed) > 0 && atomic_fetch_sub(&orders.sends_to_fail, 1) > 0) {
		atomic_store(&qp->state, IBV_QPS_ERR);
		return fail_oldest(qp, q, orders.status, orders.vendor_err);
	}
	if (!(s->flags & IBV_SEND_SIGNALED)) {
		q->done++;
		return 0;
	}
	struct ibv_wc wc = {
		.wr_id = s->wr_id, .status = IBV_WC_SUCCESS, .opcode = wc_opcodes[s->opcode], .byte_len = s->bytes, .qp_num = qp->qp.qp_num,
	};
	int did = put(q, &wc, 0);
	if (!(did & STORED)) /* an overrun CQ takes its queue pairs with it */
		atomic_store(&qp->state, IBV_QPS_ERR);
	return did;
}

/* execute runs the send queue, whose lock is held. */
static void execute(struct sqp *qp)
{
	struct queue *q = &qp->sq;
	int did = 0;

	if (atomic_load_explicit(&qp->hold, memory_order_relaxed))
		return;
	pthread_spin_lock(&q->cq->lock);
	while (q->done != q->posted && in_state(qp, IBV_QPS_RTS))
		did |= execute_oldest(qp);
	pthread_spin_unlock(&q->cq->lock);
	announce(q->cq, did);
	flush(qp, q);
}

/* become moves a queue pair to a state. */
void become(struct sqp *qp, enum ibv_qp_state to)
{
	pthread_spin_lock(&qp->sq.lock);
	atomic_store(&qp->state, to);
	execute(qp);
	pthread_spin_unlock(&qp->sq.lock);
	flush_recvs(qp);
	if (to != IBV_QPS_RESET)
		return;
	for (struct queue *q = &qp->sq; q <= &qp->rq; q++) {
		pthread_spin_lock(&q->lock);
		forget(q);
		q->posted = q->done = 0;
		atomic_store(&q->freed, 0);
		pthread_spin_unlock(&q->lock);
	}
}

/* complete_recv completes the oldest receive of a queue pair, if there is one. */
int complete_recv(struct sqp *qp, struct ibv_wc wc, int solicited)
{
	struct queue *q = &qp->rq;
	int any, did = 0;

	pthread_spin_lock(&q->lock);
	pthread_spin_lock(&q->cq->lock);
	any = q->done != q->posted;
	if (any) {
		wc.wr_id = oldest(q)->wr_id;
		did = put(q, &wc, solicited);
	}
	pthread_spin_unlock(&q->cq->lock);
	pthread_spin_unlock(&q->lock);
	announce(q->cq, did);
	return any;
}

/* ---- posting ---- */

/* check_send says what is wrong with a send, but for its scatter list. */
static int check_send(struct sqp *qp, const struct ibv_send_wr *wr, uint64_t bytes)
{
	const unsigned flags = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;

	if (wr->opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD && !(wr->send_flags & ~flags) &&
	    (!(wr->send_flags & IBV_SEND_INLINE) || (wr->opcode < IBV_WR_RDMA_READ && bytes <= qp->init.cap.max_inline_data)))
		return 0;
	complain("ibv_post_send: opcode %d with flags 0x%x and %llu bytes", (int)wr->opcode, wr->send_flags, (unsigned long long)bytes);
	return EINVAL;
}

/* take puts a request into its queue, whose lock is held. A struct ibv_send_wr begins as a struct ibv_recv_wr does. */
static inline int take(const char *call, struct sqp *qp, struct queue *q, const struct ibv_recv_wr *wr, const struct ibv_send_wr *send)
{
	struct slot slot = { .wr_id = wr->wr_id };
	uint64_t bytes = 0;

	if (q->posted - atomic_load_explicit(&q->freed, memory_order_acquire) == q->size)
		return ENOMEM;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge || (wr->num_sge && !wr->sg_list)) {
		complain("%s: %d scatter-gather elements, the queue takes %u", call, wr->num_sge, q->max_sge);
		return EINVAL;
	}
	if (send) {
		for (int i = 0; i < wr->num_sge; i++)
			bytes += wr->sg_list[i].length;
		if (check_send(qp, send, bytes))
			return EINVAL;
		slot.opcode = send->opcode;
		slot.bytes = (uint32_t)bytes;
		slot.flags = send->send_flags | (qp->init.sq_sig_all ? IBV_SEND_SIGNALED : 0);
	}
	if (atomic_load_explicit(&orders.record, memory_order_relaxed))
		see_post(qp, wr, send);
	q->ring[q->posted++ & (q->size - 1)] = slot;
	return 0;
}

static inline int post(const char *call, struct sqp *qp, int sends, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct queue *q = sends ? &qp->sq : &qp->rq;
	int at = -2, fault = ordered(call, &at), err = 0;

	if (qp->magic != MAGIC || qp->state < (sends ? IBV_QPS_RTS : IBV_QPS_INIT)) {
		complain("%s: no live queue pair, or in state %d, which mlx5 does not notice", call, qp->state);
		*bad_wr = wr;
		return EINVAL;
	}
	pthread_spin_lock(&q->lock);
	q->crossings++;
	for (int i = 0; wr; i++, wr = wr->next) {
		err = fault && i == at ? fault : take(call, qp, q, wr, sends ? (struct ibv_send_wr *)wr : NULL);
		if (err) {
			*bad_wr = wr;
			break;
		}
	}
	if (fault && at == -1) { /* as rxe: all of it is in the queue, and the doorbell failed */
		*bad_wr = NULL;
		err = fault;
	} else if (sends) {
		execute(qp);
	}
	pthread_spin_unlock(&q->lock);
	flush_recvs(qp);
	return err == UNSAID ? 0 : err;
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	ENTERED();
	return post("ibv_post_send", (struct sqp *)qp, 1, (struct ibv_recv_wr *)wr, (struct ibv_recv_wr **)bad_wr);
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	ENTERED();
	return post("ibv_post_recv", (struct sqp *)qp, 0, wr, bad_wr);
}
