/* Queue pairs and their state. */
#include "standin.h"

static void queue_init(struct queue *q, struct ibv_cq *cq, uint32_t *wrs, uint32_t *sges)
{
	pthread_spin_init(&q->lock, 0);
	q->cq = (struct scq *)cq;
	q->size = *wrs = round_up(*wrs); /* more than was asked for, as drivers do */
	q->max_sge = *sges = *sges ? *sges : 1;
	q->ring = calloc(q->size, sizeof(*q->ring));
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct ibv_qp_cap *cap = &init->cap;

	HOLD(&big);
	if ((errno = begin(__func__, pd, PD)))
		return NULL;
	errno = EINVAL;
	if (!known(__func__, init->send_cq, CQ) || !known(__func__, init->recv_cq, CQ) || init->send_cq->context != pd->context ||
	    init->recv_cq->context != pd->context || init->srq || init->qp_type != IBV_QPT_RC || (init->sq_sig_all & ~1)) {
		complain("ibv_create_qp: srq %p, type %d, sq_sig_all %d, or a CQ of another context", (void *)init->srq, init->qp_type,
			 init->sq_sig_all);
		return NULL;
	}
	if (cap->max_send_wr > MAX_WR || cap->max_recv_wr > MAX_WR || cap->max_send_sge > MAX_SGE || cap->max_recv_sge > MAX_SGE ||
	    cap->max_inline_data > MAX_INLINE)
		return NULL;
	struct device *d = device_of(pd->context);
	struct sqp *qp = create(QP, sizeof(*qp), pd, init->send_cq, init->recv_cq);
	queue_init(&qp->sq, init->send_cq, &cap->max_send_wr, &cap->max_send_sge);
	queue_init(&qp->rq, init->recv_cq, &cap->max_recv_wr, &cap->max_recv_sge);
	cap->max_inline_data = (cap->max_inline_data + 31) & ~31u;
	qp->qp = (struct ibv_qp){
		.context = pd->context, .qp_context = init->qp_context, .pd = pd, .send_cq = init->send_cq, .recv_cq = init->recv_cq,
		.handle = d->next_handle++, .qp_num = d->next_qpn++, .qp_type = init->qp_type,
	};
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	qp->async = (struct source){ &qp->qp.mutex, &qp->qp.cond, &qp->qp.events_completed, 0 };
	qp->init = *init;
	qp->magic = MAGIC;
	return &qp->qp;
}

int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct sqp *qp = (struct sqp *)ibqp;
	int err = removable(__func__, qp, QP);

	if (err)
		return fail(err);
	settle(__func__, async_of(ibqp->context), &qp->async);
	forget(&qp->sq);
	forget(&qp->rq);
	free(qp->sq.ring);
	free(qp->rq.ring);
	bury(qp);
	return 0;
}

/* What the transitions on the way up demand. */
static const int demanded[IBV_QPS_RTS + 1] = {
	[IBV_QPS_INIT] = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	[IBV_QPS_RTR] = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
			IBV_QP_MIN_RNR_TIMER,
	[IBV_QPS_RTS] = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

static int check_ah(struct sqp *qp, const struct ibv_ah_attr *ah)
{
	static const union ibv_gid none;

	if (ah->port_num < 1 || ah->port_num > PORTS)
		return EINVAL;
	const struct port *p = &device_of(qp->qp.context)->ports[ah->port_num - 1];
	if (!ah->is_global)
		return p->attr.link_layer == IBV_LINK_LAYER_ETHERNET ? EINVAL : 0;
	return ah->grh.sgid_index >= GIDS || !memcmp(&p->gids[ah->grh.sgid_index].gid, &none, sizeof(none)) ? EINVAL : 0;
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
	return mask & IBV_QP_AV ? check_ah(qp, &attr->ah_attr) : 0;
}

static void merge(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
#define TAKE(bit, field) to->field = mask & (bit) ? from->field : to->field
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

int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask)
{
	struct sqp *qp = (struct sqp *)ibqp;

	HOLD(&big);
	int err = begin(__func__, qp, QP);
	see_modify(attr, mask);
	if (!err)
		err = check_modify(qp, attr, mask);
	if (err)
		return fail(err);
	merge(&qp->attr, attr, mask);
	if (mask & IBV_QP_STATE) {
		become(qp, attr->qp_state);
		ibqp->state = attr->qp_state;
		if (ibqp->state == IBV_QPS_RESET)
			memset(&qp->attr, 0, sizeof(qp->attr));
	}
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct sqp *qp = (struct sqp *)ibqp;

	HOLD(&big);
	int err = begin(__func__, qp, QP);
	if (err)
		return fail(err);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = atomic_load(&qp->state);
	attr->cap = qp->init.cap;
	*init = qp->init;
	if (mask & IBV_QP_STATE)
		ibqp->state = attr->qp_state;
	return 0;
}
