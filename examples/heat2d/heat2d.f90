! heat2d: heat spreads over a square plate whose left edge is kept hot. Each rank holds a band of columns.
!
! With the checkpoint API (five calls, marked "ft") the job survives the death of any of its ranks:
!
!     mpif90 -o heat2d $(pkg-config --variable=includedir ftd-client)/ft.f90 heat2d.f90 $(pkg-config --libs ftd-client)
!     ftrun -n 4 --ft=reinit ./heat2d -s 500 -p 20        (ten seconds)
!
! The result is a hash over the plate after every single step: one wrong step shows. Options as in heat2d.c.
program heat2d
  use, intrinsic :: iso_fortran_env, only: int64, real64, output_unit, error_unit
  use mpi
  use ft
  implicit none
  integer :: cells = 128, steps = 100, every = 10, pause_ms = 0
  integer :: rank, ranks, first, columns, up, down, state, code, ierr, row, column
  integer, target :: step = 0
  integer(int64), target :: result = 0
  integer(int64) :: version, mine, everybodys
  real(real64), allocatable, target :: now(:, :)
  real(real64), allocatable :: next(:, :)

  call options()
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
  first = cells * rank / ranks
  columns = cells * (rank + 1) / ranks - first
  up = merge(rank - 1, MPI_PROC_NULL, rank > 0)
  down = merge(rank + 1, MPI_PROC_NULL, rank < ranks - 1)
  allocate(now(cells, 0:columns + 1), next(cells, 0:columns + 1), source=0.0_real64)
  now(1, :) = 100
  next(1, :) = 100

  call ft_init(state, code)                                   ! ft
  call check('ft_init')
  call ft_protect(0, step, code)                              ! ft: everything that a restarted
  call check('ft_protect')                                    !     rank needs to go on
  call ft_protect(1, result, code)
  call check('ft_protect')
  call ft_protect(2, now, code)
  call check('ft_protect')
  call ft_restore(version, code)                              ! ft
  if (code == FT_OK) then
    if (rank == 0) write (output_unit, '(a,i0)') 'restarted from version ', version
  else if (code /= FT_ERR_NONE) then
    call check('ft_restore')
  end if

  do while (step < steps)
    call MPI_Sendrecv(now(1, 1), cells, MPI_DOUBLE_PRECISION, up, 0, now(1, columns + 1), cells, MPI_DOUBLE_PRECISION, &
      down, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    call MPI_Sendrecv(now(1, columns), cells, MPI_DOUBLE_PRECISION, down, 1, now(1, 0), cells, MPI_DOUBLE_PRECISION, &
      up, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
    mine = 0
    do column = 1, columns
      do row = 2, cells - 1
        next(row, column) = 0.25_real64 * (now(row - 1, column) + now(row + 1, column) + now(row, column - 1) &
          + now(row, column + 1))
        mine = ieor(mine, mix(transfer(next(row, column), mine) + int(first + column, int64) * cells + row - 1))
      end do
    end do
    now(:, 1:columns) = next(:, 1:columns)
    call MPI_Allreduce(mine, everybodys, 1, MPI_INTEGER8, MPI_BXOR, MPI_COMM_WORLD, ierr)
    result = mix(result + everybodys)
    step = step + 1
    if (rank == 0) then
      write (output_unit, '(a,i0,a,z16.16)') 'step ', step, ' hash ', result
      flush (output_unit)
    end if
    call wait(pause_ms)
    if (mod(step, every) == 0) then
      call ft_checkpoint(step, code)                          ! ft
      call check('ft_checkpoint')
    end if
  end do
  if (rank == 0) write (output_unit, '(a,z16.16)') 'result ', result
  call ft_finalize(code)                                      ! ft
  call check('ft_finalize')
  call MPI_Finalize(ierr)

contains

  function mix(x) result(y) ! splitmix64's finalizer; integers wrap around
    integer(int64), intent(in) :: x
    integer(int64) :: y
    y = ieor(x, shiftr(x, 30)) * (-4658895280553007687_int64)
    y = ieor(y, shiftr(y, 27)) * (-7723592293110705685_int64)
    y = ieor(y, shiftr(y, 31))
  end function

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (code == FT_OK) return
    write (error_unit, '(4a)') 'heat2d: ', what, ': ', ft_strerror(code)
    call MPI_Abort(MPI_COMM_WORLD, 2, ierr)
  end subroutine

  subroutine wait(milliseconds)
    integer, intent(in) :: milliseconds
    double precision :: until
    until = MPI_Wtime() + milliseconds / 1000.0d0
    do while (MPI_Wtime() < until)
    end do
  end subroutine

  subroutine options()
    character(len=32) :: name, value
    integer :: i
    do i = 1, command_argument_count() - 1, 2
      call get_command_argument(i, name)
      call get_command_argument(i + 1, value)
      select case (name)
      case ('-g'); read (value, *) cells
      case ('-s'); read (value, *) steps
      case ('-c'); read (value, *) every
      case ('-p'); read (value, *) pause_ms
      end select
    end do
  end subroutine

end program
