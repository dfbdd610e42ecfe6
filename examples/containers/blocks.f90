! blocks: an array of a derived type with an allocatable component, each of its own length, which changes. Each rank has its own.
!
!     mpif90 -o blocks $(pkg-config --variable=includedir ftd-client)/ft.f90 containers/blocks.f90 $(pkg-config --libs ftd-client)
!     ftrun -n 2 --ft=reinit ./blocks 500 20        (steps, and milliseconds of pause per step: ten seconds)
program blocks_of_a_rank
  use mpi
  use ft
  use, intrinsic :: iso_fortran_env, only: int64, real64
  implicit none
  type block
    integer :: level = 1
    real(real64), allocatable :: cells(:)
  end type
  integer, parameter :: count = 5
  type(block), target :: blocks(count)
  integer, target :: step = 0, lengths(count), levels(count)
  integer :: steps = 40, pause = 0, rank, state, code, ierr, version, b
  double precision :: total, all

  call options()
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  do b = 1, count
    allocate(blocks(b)%cells(b), source=1d0 * rank)
  end do
  call ft_init(state, code)
  call check('ft_init')
  call ft_protect(0, step)
  call ft_protect(1, lengths)
  call ft_protect(2, levels)
  call ft_restore(version, code)                                  ! the lengths
  if (code == FT_OK) then
    do b = 1, count
      deallocate(blocks(b)%cells)
      allocate(blocks(b)%cells(lengths(b)))
    end do
    call protect_cells()
    call ft_restore(version, code)                                ! the rest
    call check('ft_restore')
    blocks%level = levels
    if (rank == 0) print '(a,i0)', 'restarted from version ', version
  else if (code /= FT_ERR_NONE) then
    call check('ft_restore')
  end if

  do while (step < steps)
    step = step + 1
    b = 1 + mod(step, count)                                      ! it gets other cells: more, or fewer
    blocks(b)%cells = [blocks(b)%cells(:size(blocks(b)%cells) / (1 + mod(step, 3))), 1d0 / step, 1d0 * step]
    blocks(b)%level = blocks(b)%level + mod(step, 3)
    total = 0
    do b = 1, count
      blocks(b)%cells = blocks(b)%cells * 0.75d0 + b * blocks(b)%level
      total = total + sum(blocks(b)%cells)
    end do
    call MPI_Reduce(total, all, 1, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierr)
    if (rank == 0) print '(a,i0,a,i8.8,z16.16)', 'step ', step, ' hash ', size(blocks(1)%cells), int(all * 1d6, int64)
    call wait(pause)
    if (mod(step, 4) == 0) then
      levels = blocks%level
      lengths = [(size(blocks(b)%cells), b = 1, count)]
      call protect_cells()
      call ft_checkpoint(step, code)
      call check('ft_checkpoint')
    end if
  end do
  call ft_finalize(code)
  call MPI_Finalize(ierr)

contains

  ! What has moved or grown since is protected anew.
  subroutine protect_cells()
    integer :: b
    do b = 1, count
      call ft_protect(10 + b, blocks(b)%cells)
    end do
  end subroutine

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (code == FT_OK) return
    write (0, '(4a)') 'blocks: ', what, ': ', ft_strerror(code)
    call MPI_Abort(MPI_COMM_WORLD, 2, ierr)
  end subroutine

  subroutine wait(milliseconds)
    integer, intent(in) :: milliseconds
    double precision :: until
    until = MPI_Wtime() + milliseconds / 1000d0
    do while (MPI_Wtime() < until)
    end do
  end subroutine

  subroutine options()
    character(len=32) :: value
    if (command_argument_count() >= 1) then
      call get_command_argument(1, value)
      read (value, *) steps
    end if
    if (command_argument_count() >= 2) then
      call get_command_argument(2, value)
      read (value, *) pause
    end if
  end subroutine

end program
