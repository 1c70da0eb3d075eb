/* The ledger: complaints about the caller, failures to order, and which objects are alive. */
#include "standin.h"
#include <stdarg.h>
#include <stdio.h>

pthread_mutex_t big = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
atomic_int complaints;
char complaint[256];
struct orders orders;

void complain(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	if (atomic_fetch_add(&complaints, 1) == 0)
		vsnprintf(complaint, sizeof(complaint), format, args);
	va_end(args);
}

/* ordered takes one failure of a call, if one was ordered. Posts say where to put its index. */
int ordered(const char *call, int *index)
{
	if (!atomic_load_explicit(&orders.faults_armed, memory_order_relaxed))
		return 0;
	HOLD(&big);
	for (struct fault *f = orders.faults; f < orders.faults + 16; f++) {
		if (f->times == 0 || strcmp(f->call, call))
			continue;
		if (!index && f->index > 0) {
			f->index--;
			continue;
		}
		if (index)
			*index = f->index;
		if (--f->times == 0)
			atomic_fetch_sub(&orders.faults_armed, 1);
		return f->err;
	}
	return 0;
}

/* fail is how a call that returns int says that it failed, unless err is 0. */
int fail(int err)
{
	int style = err ? atomic_load(&orders.error_style) : 0;

	if (style == 1)
		errno = err;
	return style == 0 ? err : style == 1 ? -1 : -err;
}

const char *const kind_names[] = { "nothing", "list", "context", "pd", "mr", "channel", "cq", "qp" };
struct live *objects;
size_t objects_len;

/* Memory of destroyed objects is kept for a while, scribbled over, so that late use is noticed. */
static struct grave {
	void *p;
	size_t size;
} graves[256];

void *create(enum kind kind, size_t size, const void *need1, const void *need2, const void *need3)
{
	void *p = NULL;

	HOLD(&big);
	for (struct grave *g = graves; orders.reuse && !p && g < graves + 256; g++)
		if (g->size == size) {
			p = memset(g->p, 0, size);
			*g = (struct grave){ NULL, 0 };
		}
	if (!p)
		p = calloc(1, size);
	objects = realloc(objects, (objects_len + 1) * sizeof(*objects));
	objects[objects_len++] = (struct live){ p, size, kind, { need1, need2, need3 } };
	return p;
}

void bury(void *p)
{
	static unsigned buried;

	HOLD(&big);
	struct grave *g = &graves[buried++ % 256];
	for (struct live *l = objects; l < objects + objects_len; l++)
		if (l->p == p) {
			free(g->p);
			*g = (struct grave){ memset(p, 0xdb, l->size), l->size };
			*l = objects[--objects_len];
			return;
		}
}

/* known complains of an object that is none. */
int known(const char *call, const void *p, enum kind kind)
{
	HOLD(&big);
	for (size_t i = 0; i < objects_len; i++)
		if (objects[i].p == p && objects[i].kind == kind)
			return 1;
	complain("%s: %p is no live %s", call, p, kind_names[kind]);
	return 0;
}

/* begin begins a call on an object. It returns the errno to fail with, or 0. */
int begin(const char *call, const void *p, enum kind kind)
{
	int err = ordered(call, NULL);

	return err || known(call, p, kind) ? err : EINVAL;
}

/* removable begins the destruction of an object, which fails while others need it. */
int removable(const char *call, const void *p, enum kind kind)
{
	HOLD(&big);
	int err = begin(call, p, kind);
	for (size_t i = 0; i < objects_len && !err; i++)
		for (int k = 0; k < 3; k++)
			if (objects[i].needs[k] == p)
				err = EBUSY;
	return err;
}
