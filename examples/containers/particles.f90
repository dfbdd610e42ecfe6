! particles: an allocatable array of a derived type, which grows at every step. Each rank has particles of its own.
!
!     mpif90 -o particles-f $(pkg-config --variable=includedir ftd-client)/ft.f90 containers/particles.f90 $(pkg-config --libs ftd-client)
!     ftrun -n 2 --ft=reinit ./particles-f 500 20        (steps, and milliseconds of pause per step: ten seconds)
program particles_of_a_rank
  use mpi
  use ft
  use, intrinsic :: iso_c_binding, only: c_loc, c_sizeof, c_double, c_int64_t
  implicit none
  type, bind(C) :: particle
    real(c_double) :: place(3), speed(3)
    integer(c_int64_t) :: number
  end type
  type(particle), allocatable, target :: particles(:), more(:)
  integer, target :: step = 0, length = 0
  integer :: steps = 40, pause = 0, rank, state, code, ierr, version, i
  double precision :: total, all

  call options()
  call MPI_Init(ierr)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierr)
  call ft_init(state, code)
  call check('ft_init')
  call ft_protect(0, step)
  call ft_protect(1, length)
  call ft_restore(version, code)                                  ! the length
  allocate(particles(length))
  if (code == FT_OK) then
    call ft_protect(2, c_loc(particles), size(particles) * c_sizeof(particles(1)))
    call ft_restore(version, code)                                ! the rest
    call check('ft_restore')
    if (rank == 0) print '(a,i0)', 'restarted from version ', version
  else if (code /= FT_ERR_NONE) then
    call check('ft_restore')
  end if

  do while (step < steps)
    step = step + 1
    more = [(particle([0.1d0 * rank, 0.01d0 * i, 1d0 / step], [1d0 / i, 0.5d0, 0.25d0], i), i = 1, 1 + mod(step * 7, 50))]
    particles = [particles, more]                                 ! other memory from now on
    total = 0
    do i = 1, size(particles)
      particles(i)%place = particles(i)%place * 0.75d0 + particles(i)%speed
      total = total + sum(particles(i)%place)
    end do
    call MPI_Reduce(total, all, 1, MPI_DOUBLE_PRECISION, MPI_MAX, 0, MPI_COMM_WORLD, ierr)
    if (rank == 0) print '(a,i0,a,i8.8,z16.16)', 'step ', step, ' hash ', size(particles), int(all * 1d6, c_int64_t)
    call wait(pause)
    if (mod(step, 4) == 0) then
      length = size(particles)
      call ft_protect(2, c_loc(particles), size(particles) * c_sizeof(particles(1)))
      call ft_checkpoint(step, code)
      call check('ft_checkpoint')
    end if
  end do
  call ft_finalize(code)
  call MPI_Finalize(ierr)

contains

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (code == FT_OK) return
    write (0, '(4a)') 'particles: ', what, ': ', ft_strerror(code)
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
