/* A library for LD_PRELOAD: system calls of a process fail, wait, or tell another time, as a file says that the test has mapped too.
   See faulty_machine.py, which knows the same structure. FAULTY_CALLS names the file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

struct faults {
  int32_t write_error;  /* of write, pwrite and fallocate: an errno, such as ENOSPC */
  int32_t sync_error;   /* of fsync, fdatasync and O_DSYNC writes: an errno, such as EIO */
  int32_t slow;         /* milliseconds that a write or a sync takes longer */
  int32_t hold;         /* the next record waits: 1 before it is written, 2 after it; the process sets it to 3 and waits for 0 */
  int64_t ahead;        /* seconds by which the clock is wrong */
};

static volatile struct faults *faults;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTY_CALLS");
  int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) faults = found;
  if (file >= 0) close(file);
}

static void wait_for(long milliseconds) {
  struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&span, NULL);
}

/* Whether a descriptor is of a file: sockets and pipes do not fail with the disk. */
static int on_disk(int descriptor) { return faults && lseek(descriptor, 0, SEEK_CUR) >= 0; }

static int fails(int descriptor, int error) {
  if (!on_disk(descriptor)) return 0;
  if (faults->slow) wait_for(faults->slow);
  if (error) errno = error;
  return error;
}

static void stop_at(int moment) {
  if (faults->hold != moment) return;
  faults->hold = 3;
  while (faults->hold == 3) wait_for(1);
}

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

int fsync(int descriptor) { return faults && fails(descriptor, faults->sync_error) ? -1 : NEXT(fsync)(descriptor); }
int fdatasync(int descriptor) { return faults && fails(descriptor, faults->sync_error) ? -1 : NEXT(fdatasync)(descriptor); }

ssize_t write(int descriptor, const void *data, size_t size) {
  return faults && faults->write_error && fails(descriptor, faults->write_error) ? -1 : NEXT(write)(descriptor, data, size);
}

/* The record of the head is the only file that a registry writes with O_DSYNC. */
static ssize_t positioned(int descriptor, const void *data, size_t size, off_t offset) {
  if (!faults) return NEXT(pwrite)(descriptor, data, size, offset);
  int durable = (fcntl(descriptor, F_GETFL) & O_DSYNC) == O_DSYNC;
  if (durable) stop_at(1);
  if (fails(descriptor, faults->write_error ? faults->write_error : durable ? faults->sync_error : 0)) return -1;
  ssize_t written = NEXT(pwrite)(descriptor, data, size, offset);
  if (durable) stop_at(2);
  return written;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) { return positioned(descriptor, data, size, offset); }
ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t offset) { return positioned(descriptor, data, size, offset); }

int posix_fallocate(int descriptor, off_t offset, off_t size) {
  return faults && faults->write_error ? faults->write_error : NEXT(posix_fallocate)(descriptor, offset, size);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  static int (*next)(clockid_t, struct timespec *);
  if (!next) next = NEXT(clock_gettime);
  int result = next(clock, time);
  if (!result && faults && clock == CLOCK_REALTIME) time->tv_sec += faults->ahead;
  return result;
}
