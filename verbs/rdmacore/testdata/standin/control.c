/* What a test orders of the library, and asks it. What it saw of its calls is in record.c. */
#include "standin.h"
#include <stdio.h>

/* standin_reset makes everything as it was. Objects that are alive are leaked. */
void standin_reset(void)
{
	HOLD(&big);
	memset(&orders, 0, sizeof(orders));
	atomic_store(&complaints, 0);
	complaint[0] = 0;
	objects_len = 0;
	atomic_store(&seen_len, 0);
	reset_devices();
}

int standin_complaints(void)
{
	return atomic_load(&complaints);
}

const char *standin_complaint(void) /* the first one */
{
	return complaint;
}

int standin_live(const char *kind)
{
	int n = 0;

	HOLD(&big);
	for (size_t i = 0; i < objects_len; i++)
		n += !strcmp(kind, "all") || !strcmp(kind, kind_names[objects[i].kind]);
	return n;
}

/* standin_fail makes a call fail some times; struct fault says what index is. */
void standin_fail(const char *call, int err, int times, int index)
{
	struct fault *f = orders.faults;

	HOLD(&big);
	while (f->times && f < orders.faults + 15)
		f++;
	*f = (struct fault){ .err = err, .times = times, .index = index };
	snprintf(f->call, sizeof(f->call), "%s", call);
	atomic_fetch_add(&orders.faults_armed, 1);
}

/* standin_status makes the next sends complete with a status, and their queue pairs fail. */
void standin_status(int status, int vendor_err, int sends)
{
	atomic_store(&orders.status, status);
	atomic_store(&orders.vendor_err, vendor_err);
	atomic_store(&orders.sends_to_fail, sends);
}

/*
 * standin_set: "devices", how many there are; "record", whether work requests are recorded, from now on; "error_style", see fail;
 * "graves", whether the memory of destroyed objects rests for a while, or is used again at once. Of a device: "transport". Of a port:
 * "state", "link_layer", "width", "speed".
 */
void standin_set(const char *what, int device, int port, int value)
{
	struct ibv_port_attr *a = &devices[device].ports[port - 1].attr;

	HOLD(&big);
	if (!strcmp(what, "devices"))
		device_count = value;
	else if (!strcmp(what, "record")) {
		atomic_store(&orders.record, value);
		atomic_store(&seen_len, 0);
	} else if (!strcmp(what, "error_style"))
		atomic_store(&orders.error_style, value);
	else if (!strcmp(what, "graves"))
		orders.reuse = !value;
	else if (!strcmp(what, "transport"))
		devices[device].dev.transport_type = value;
	else if (!strcmp(what, "state"))
		a->state = value;
	else if (!strcmp(what, "link_layer"))
		a->link_layer = value;
	else if (!strcmp(what, "width"))
		a->active_width = value;
	else if (!strcmp(what, "speed"))
		a->active_speed = value;
	else
		complain("standin_set: %s", what);
}

/* standin_set_gid sets an entry of a GID table; sixteen zeros empty it. */
void standin_set_gid(int device, int port, int index, const union ibv_gid *gid, int type)
{
	devices[device].ports[port - 1].gids[index] = (struct gid){ *gid, type, 0 };
}

/* find is the live queue pair of a number, or the CQ of a handle. big is held. */
void *find(enum kind kind, int device, uint32_t number)
{
	for (size_t i = 0; i < objects_len; i++) {
		const struct ibv_qp *qp = objects[i].p;
		const struct ibv_cq *cq = objects[i].p;
		if (objects[i].kind == kind && (kind == QP ? qp->qp_num : cq->handle) == number &&
		    device_of(kind == QP ? qp->context : cq->context) == &devices[device])
			return objects[i].p;
	}
	complain("the test knows no %s %u of device %d", kind_names[kind], number, device);
	return NULL;
}

uint32_t standin_last_cq(int device) /* the handle of the CQ that was created last */
{
	return devices[device].last_cq;
}

/* standin_cq says of a CQ its "vector", or how many events of it were read and are not acknowledged. */
int standin_cq(const char *what, int device, uint32_t handle)
{
	HOLD(&big);
	struct scq *cq = find(CQ, device, handle);
	if (!cq)
		return -1;
	if (!strcmp(what, "vector"))
		return cq->vector;
	return (int)(cq->comp.reported + cq->async.reported - *cq->comp.acked - *cq->async.acked);
}

/*
 * standin_qp: "hold" keeps the sends of a queue pair in its queue, until "release" executes them; "kill" moves it to ERR, as hardware does
 * by itself; "sends" and "recvs" are how often it was posted to.
 */
int standin_qp(const char *what, int device, uint32_t qp_num)
{
	HOLD(&big);
	struct sqp *qp = find(QP, device, qp_num);
	if (!qp)
		return -1;
	if (!strcmp(what, "hold"))
		atomic_store(&qp->hold, 1);
	else if (!strcmp(what, "release")) {
		atomic_store(&qp->hold, 0);
		become(qp, atomic_load(&qp->state));
	} else if (!strcmp(what, "kill"))
		become(qp, IBV_QPS_ERR);
	return !strcmp(what, "recvs") ? qp->rq.crossings : qp->sq.crossings;
}

/*
 * standin_complete_recv completes the oldest receive of a queue pair, as a message from the peer does. with_imm: 0 for a SEND, 1 for a
 * SEND with immediate, 2 for a write with immediate. It returns 0 if no receive is posted.
 */
int standin_complete_recv(int device, uint32_t qp_num, uint32_t bytes, uint32_t imm, int with_imm, int solicited)
{
	struct ibv_wc wc = {
		.status = IBV_WC_SUCCESS, .opcode = with_imm == 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV, .byte_len = bytes,
		.imm_data = htobe32(imm), .qp_num = qp_num, .src_qp = 0x424242, .wc_flags = with_imm ? IBV_WC_WITH_IMM : 0,
	};

	HOLD(&big);
	struct sqp *qp = find(QP, device, qp_num);
	return qp && complete_recv(qp, wc, solicited);
}

/*
 * standin_raise raises an asynchronous event; number is a port, a queue pair's number or a CQ's handle, as the type needs. It says how
 * many contexts got it.
 */
int standin_raise(int device, int type, uint32_t number)
{
	struct ibv_async_event e = { .event_type = type };
	enum kind kind = subject(type);
	int told = 0;

	HOLD(&big);
	if (kind != NOTHING) {
		struct scq *cq = find(kind, device, number);
		struct sqp *qp = (struct sqp *)cq;
		if (!cq)
			return 0;
		e.element.cq = &cq->cq;
		events_put(async_of(kind == CQ ? cq->cq.context : qp->qp.context), kind == CQ ? &cq->async : &qp->async, e);
		return 1;
	}
	e.element.port_num = (int)number;
	for (size_t i = 0; i < objects_len; i++)
		if (objects[i].kind == CONTEXT && device_of(objects[i].p) == &devices[device]) {
			events_put(async_of(objects[i].p), NULL, e);
			told++;
		}
	return told;
}
