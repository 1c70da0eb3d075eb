/* What calls looked like from here, in forms of our own that standin_test.go declares likewise. */
#include "standin.h"

static struct seen {
	uint64_t wr_id, remote_addr, compare_add, swap;
	uint32_t qp_num, is_recv, opcode, flags, imm, rkey, num_sge, inline_len;
	struct ibv_sge sge[MAX_SGE];
	uint8_t inlined[MAX_INLINE];
} seen[4096];
atomic_int seen_len;

static void see_send(struct seen *s, const struct ibv_send_wr *wr)
{
	s->opcode = wr->opcode;
	s->flags = wr->send_flags;
	if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || wr->opcode == IBV_WR_SEND_WITH_IMM)
		s->imm = be32toh(wr->imm_data);
	if (wr->opcode >= IBV_WR_ATOMIC_CMP_AND_SWP) {
		s->remote_addr = wr->wr.atomic.remote_addr;
		s->rkey = wr->wr.atomic.rkey;
		s->compare_add = wr->wr.atomic.compare_add;
		s->swap = wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? wr->wr.atomic.swap : 0;
	} else if (wr->opcode != IBV_WR_SEND && wr->opcode != IBV_WR_SEND_WITH_IMM) {
		s->remote_addr = wr->wr.rdma.remote_addr;
		s->rkey = wr->wr.rdma.rkey;
	}
	for (int i = 0; i < wr->num_sge && (wr->send_flags & IBV_SEND_INLINE); i++) {
		memcpy(s->inlined + s->inline_len, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		s->inline_len += wr->sg_list[i].length;
	}
}

/* see_post records a request; send is NULL if it is a receive. */
void see_post(struct sqp *qp, const struct ibv_recv_wr *wr, const struct ibv_send_wr *send)
{
	struct seen *s = &seen[atomic_fetch_add(&seen_len, 1) % 4096];

	*s = (struct seen){ .wr_id = wr->wr_id, .qp_num = qp->qp.qp_num, .is_recv = !send, .num_sge = wr->num_sge };
	memcpy(s->sge, wr->sg_list, wr->num_sge * sizeof(*s->sge));
	if (send)
		see_send(s, send);
}

int standin_seen(void)
{
	return atomic_load(&seen_len);
}

int standin_get_seen(int i, struct seen *out, uint32_t size)
{
	if (i >= atomic_load(&seen_len) || i >= 4096 || size != sizeof(*out))
		return 0;
	*out = seen[i];
	return 1;
}

/* The last ibv_modify_qp. */
static struct modified {
	uint32_t mask, qp_state, cur_qp_state, path_mtu, rq_psn, sq_psn, dest_qp_num, access, pkey_index, port_num, timeout, retry_cnt,
		rnr_retry, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer;
	uint32_t flow_label, sgid_index, hop_limit, traffic_class, dlid, sl, src_path_bits, static_rate, is_global, ah_port;
	union ibv_gid dgid;
} modified;

void see_modify(const struct ibv_qp_attr *a, int mask)
{
	const struct ibv_ah_attr *ah = &a->ah_attr;

	modified = (struct modified){
		mask, a->qp_state, a->cur_qp_state, a->path_mtu, a->rq_psn, a->sq_psn, a->dest_qp_num, a->qp_access_flags, a->pkey_index,
		a->port_num, a->timeout, a->retry_cnt, a->rnr_retry, a->max_rd_atomic, a->max_dest_rd_atomic, a->min_rnr_timer,
		ah->grh.flow_label, ah->grh.sgid_index, ah->grh.hop_limit, ah->grh.traffic_class, ah->dlid, ah->sl, ah->src_path_bits,
		ah->static_rate, ah->is_global, ah->port_num, ah->grh.dgid,
	};
}

int standin_last_modify(struct modified *out, uint32_t size)
{
	if (size != sizeof(*out))
		return 0;
	*out = modified;
	return 1;
}

/* The last registration. */
static uint64_t last_mr[6];

void see_mr(uint64_t addr, uint64_t length, uint64_t offset, uint64_t iova, uint64_t fd, uint64_t access)
{
	memcpy(last_mr, (uint64_t[]){ addr, length, offset, iova, fd, access }, sizeof(last_mr));
}

void standin_last_mr(uint64_t out[6])
{
	memcpy(out, last_mr, sizeof(last_mr));
}
