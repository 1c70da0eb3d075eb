// What shmem is compared with: mpicc -O2 -o mpi mpi.c && mpirun -n 4 ./mpi BYTES CALLS
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int rank, ranks, calls = atoi(argv[2]);
  size_t n = atol(argv[1]) / sizeof(float);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *src = calloc(n, sizeof *src), *dst = calloc(n, sizeof *dst);
  const char *name[] = {"all-reduce", "all-gather", "barrier"};
  for (int op = 0; op < 3; op++) {
    double began = 0;
    for (int i = -2; i < calls; i++) { // two do not count
      if (i == 0) {
        MPI_Barrier(MPI_COMM_WORLD);
        began = MPI_Wtime();
      }
      if (op == 0)
        MPI_Allreduce(src, dst, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      else if (op == 1)
        MPI_Allgather(src, n / ranks, MPI_FLOAT, dst, n / ranks, MPI_FLOAT, MPI_COMM_WORLD);
      else
        MPI_Barrier(MPI_COMM_WORLD);
    }
    if (rank == 0)
      printf("%s of %zu bytes: %.1f us\n", name[op], n * sizeof(float), (MPI_Wtime() - began) / calls * 1e6);
  }
  MPI_Finalize();
  return 0;
}
