/* A program in C, to compare one in Go with. */
#include "standin.h"

/*
 * standin_post_poll posts batches of RDMA writes of 8 bytes to a queue pair and polls each from its CQ, through the table of operations as
 * the header has it. It returns how many batches were posted and polled whole; the first that was not ends it.
 */
long standin_post_poll(int device, uint32_t qp_num, uint64_t addr, uint32_t lkey, int batch, long rounds)
{
	struct ibv_send_wr wrs[64], *bad;
	struct ibv_wc wcs[64];
	struct ibv_sge sge = { addr, 8, lkey };
	struct sqp *qp;
	long done = 0;

	{
		HOLD(&big);
		qp = find(QP, device, qp_num);
	}
	if (!qp || batch < 1 || batch > 64)
		return 0;
	for (int i = 0; i < batch; i++)
		wrs[i] = (struct ibv_send_wr){
			.wr_id = i, .next = i + 1 < batch ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
		};
	while (done < rounds && !ibv_post_send(&qp->qp, wrs, &bad) && ibv_poll_cq(qp->qp.send_cq, batch, wcs) == batch)
		done++;
	return done;
}
