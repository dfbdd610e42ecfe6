! lines: prints `rank R step K` in every step, and never flushes. lines STEPS EVERY, as in lines.c.
program lines
  use mpi
  use ft
  implicit none
  integer :: rank, code, state, total, steps, every
  integer, target :: step
  integer(8) :: version
  character(len=16) :: word

  call get_command_argument(1, word)
  read (word, *) steps
  call get_command_argument(2, word)
  read (word, *) every
  call MPI_Init(code)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, code)
  step = 0
  call ft_on_checkpoint(say_more)
  call ft_init(state)
  call ft_protect(0, step)
  if (state == FT_STATE_RESTARTED) call ft_restore(version)
  do while (step < steps)
    call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, code)
    step = step + 1
    print '(a,i0,a,i0)', 'rank ', rank, ' step ', step
    if (mod(step, every) == 0) call ft_checkpoint(step)
  end do
  call MPI_Finalize(code)

contains

  subroutine say_more(argument) bind(C)
    use, intrinsic :: iso_c_binding, only: c_ptr
    type(c_ptr), value :: argument
    print '(a,i0,a,i0)', 'rank ', rank, ' checkpoint ', step
  end subroutine

end program lines
