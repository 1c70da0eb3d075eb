/* Protection domains and memory regions. */
#include "standin.h"
#include <fcntl.h>

/* destroy ends an object of which the ledger knows all. */
static int destroy(const char *call, void *p, enum kind kind)
{
	HOLD(&big);
	int err = removable(call, p, kind);
	if (!err)
		bury(p);
	return fail(err);
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	HOLD(&big);
	if ((errno = begin(__func__, context, CONTEXT)))
		return NULL;
	struct ibv_pd *pd = create(PD, sizeof(*pd), context, NULL, NULL);
	pd->context = context;
	pd->handle = device_of(context)->next_handle++;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return destroy(__func__, pd, PD);
}

static struct ibv_mr *new_mr(const char *call, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	HOLD(&big);
	if ((errno = begin(call, pd, PD)))
		return NULL;
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) && !(access & IBV_ACCESS_LOCAL_WRITE)) {
		complain("%s: access 0x%x", call, access);
		errno = EINVAL;
		return NULL;
	}
	struct device *d = device_of(pd->context);
	struct ibv_mr *mr = create(MR, sizeof(*mr), pd, NULL, NULL);
	*mr = (struct ibv_mr){
		.context = pd->context, .pd = pd, .addr = addr, .length = length, .handle = d->next_handle++, .lkey = d->next_key++ << 8 | 0x11,
	};
	mr->rkey = mr->lkey ^ 0x80000000;
	return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	see_mr((uintptr_t)addr, length, 0, 0, 0, access);
	if (access & IBV_ACCESS_OPTIONAL_RANGE)
		complain("ibv_reg_mr: access 0x%x: optional rights are for ibv_reg_mr_iova2", access);
	return new_mr(__func__, pd, addr, length, access);
}

#ifndef OLD
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	see_mr((uintptr_t)addr, length, 0, iova, 0, access);
	return new_mr(__func__, pd, addr, length, access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
	see_mr(0, length, offset, iova, fd, access);
	if (fcntl(fd, F_GETFD) < 0)
		return NULL; /* EBADF */
	/* The offset is what libibverbs has in addr, and not the address that work requests use. */
	return new_mr(__func__, pd, (void *)(uintptr_t)offset, length, access);
}
#endif

int ibv_dereg_mr(struct ibv_mr *mr)
{
	return destroy(__func__, mr, MR);
}
