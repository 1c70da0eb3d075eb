/* Devices: the list, contexts, and what can be asked about a device and its ports. */
#include "standin.h"
#include <stdio.h>

struct device devices[MAX_DEVICES];
int device_count;

static void reset_port(struct port *p, int device, int number)
{
	p->attr = (struct ibv_port_attr){
		.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = IBV_MTU_1024, .gid_tbl_len = GIDS, .max_msg_sz = 1u << 30,
		.lid = 0x1200 + 16 * device + number, .active_width = 2, .active_speed = 32, .link_layer = IBV_LINK_LAYER_ETHERNET,
	};
	for (int k = 0; k < 4; k++) { /* as mlx5 has it: link-local v1 and v2, then IPv4 v1 and v2 */
		static const union ibv_gid local = { .raw = { 0xfe, 0x80 } }, v4 = { .raw = { [10] = 0xff, 0xff, 10 } };
		p->gids[k] = (struct gid){ k < 2 ? local : v4, k % 2 ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_ROCE_V1, 1 }; /* of lo */
		p->gids[k].gid.raw[14] = device + 1;
		p->gids[k].gid.raw[15] = number;
	}
}

/* reset_devices makes two devices as new. No context is open. */
void reset_devices(void)
{
	memset(devices, 0, sizeof(devices));
	device_count = 2;
	for (int i = 0; i < MAX_DEVICES; i++) {
		struct device *d = &devices[i];
		d->dev.node_type = IBV_NODE_CA;
		snprintf(d->dev.name, sizeof(d->dev.name), "standin%d", i);
		d->next_qpn = FIRST_QPN;
		d->next_key = d->next_handle = 1;
		for (int p = 0; p < PORTS; p++)
			reset_port(&d->ports[p], i, p + 1);
	}
}

static int lists; /* that were not freed */

struct ibv_device **ibv_get_device_list(int *num_devices)
{
	HOLD(&big);
	if ((errno = ordered(__func__, NULL)))
		return NULL;
	struct ibv_device **list = create(LIST, (MAX_DEVICES + 1) * sizeof(*list), NULL, NULL, NULL);
	for (int i = 0; i < device_count; i++)
		list[i] = &devices[i].dev;
	if (num_devices)
		*num_devices = device_count;
	lists++;
	return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
	HOLD(&big);
	if (!known(__func__, list, LIST))
		return;
	lists--;
	bury(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	HOLD(&big);
	if ((errno = ordered(__func__, NULL)))
		return NULL;
	if (!lists)
		complain("ibv_open_device: the list with the device was freed");
	struct context *c = create(CONTEXT, sizeof(*c), NULL, NULL, NULL);
	events_init(&c->async);
	c->ctx.device = device;
	c->ctx.cmd_fd = -1;
	c->ctx.async_fd = c->async.fd;
	c->ctx.num_comp_vectors = VECTORS;
	c->ctx.ops.poll_cq = poll_cq;
	c->ctx.ops.req_notify_cq = req_notify_cq;
	c->ctx.ops.post_send = post_send;
	c->ctx.ops.post_recv = post_recv;
	return &c->ctx;
}

int ibv_close_device(struct ibv_context *context)
{
	HOLD(&big);
	int err = removable(__func__, context, CONTEXT);
	if (err == EBUSY) { /* the real one closes it all the same */
		complain("ibv_close_device: objects of it are alive");
		err = 0;
	}
	if (!err) {
		events_destroy(async_of(context));
		bury(context);
	}
	return fail(err);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	int err = begin(__func__, context, CONTEXT);

	if (!err)
		*attr = (struct ibv_device_attr){
			.fw_ver = "20.31.1014", .node_guid = htobe64(0x0002c90300a1b200 + (device_of(context) - devices)),
			.max_mr_size = 0x123456789abcd, .vendor_id = device_of(context) == devices + 1 ? 0xffffff : 0x02c9, .vendor_part_id = 4123, .hw_ver = 0x107, .max_qp = 131072,
			.max_qp_wr = MAX_WR, .max_sge = MAX_SGE, .max_cq = 16777216, .max_cqe = MAX_CQE, .max_mr = 16777215, .max_pd = 8388608,
			.max_qp_rd_atom = 16, .max_qp_init_rd_atom = 15, .phys_port_cnt = PORTS,
		};
	return fail(err);
}

/* The exported function has the structure as it was before port_cap_flags2, and writes no further. */
int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	int err = begin(__func__, context, CONTEXT);

	if (!err && (port < 1 || port > PORTS))
		err = EINVAL;
	if (!err)
		memcpy(attr, &device_of(context)->ports[port - 1].attr, offsetof(struct ibv_port_attr, port_cap_flags2));
	return fail(err);
}

static int query_gid(const char *call, struct ibv_context *context, uint32_t port, uint32_t index, struct gid *gid)
{
	int err = begin(call, context, CONTEXT);

	if (!err && (port < 1 || port > PORTS || index >= GIDS))
		err = EINVAL;
	if (!err)
		*gid = device_of(context)->ports[port - 1].gids[index];
	return err;
}

int ibv_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
	struct gid g;

	if ((errno = query_gid(__func__, context, port, (uint32_t)index, &g)))
		return -1;
	*gid = g.gid;
	return 0;
}

#ifndef OLD
int _ibv_query_gid_ex(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags, size_t size)
{
	static const union ibv_gid none;
	struct gid g;
	int err = query_gid("ibv_query_gid_ex", context, port, index, &g);

	if (!err && (flags || size != sizeof(*entry)))
		err = EINVAL;
	if (!err && !memcmp(&g.gid, &none, sizeof(none)))
		err = ENODATA;
	if (!err)
		*entry = (struct ibv_gid_entry){ g.gid, index, port, g.type, g.ifindex };
	return fail(err);
}
#endif
