! Every kind of region that the Fortran module takes, to a checkpoint and back. First argument: write or read.
program fortran
  use, intrinsic :: iso_fortran_env
  use ft
  implicit none
  real(real64), target :: scalar, line(10), cube(3, 4, 5), four(2, 2, 2, 2)
  real(real32), target :: single(7)
  integer(int32), target :: number, numbers(2, 3)
  integer(int64), target :: long
  complex(real64), target :: wave(4)
  logical, target :: flags(3)
  real(real64), allocatable, target :: field(:, :), none(:)
  integer(int64) :: version
  integer(int32) :: short
  integer :: state, ierr
  character(len=8) :: mode

  call get_command_argument(1, mode)
  allocate (field(0:9, -1:20), none(0))
  if (mode == 'write') then
    scalar = 1; line = 2; cube = 3; four = 4; single = 5; number = 6; numbers = 7; long = 8; wave = (9, 10); flags = .true.
    field = 11
  else
    scalar = 0; line = 0; cube = 0; four = 0; single = 0; number = 0; numbers = 0; long = 0; wave = 0; flags = .false.
    field = 0
  end if
  call ft_init(state, ierr)
  if (ierr /= FT_OK) error stop ft_strerror(ierr)
  call ft_protect(1, scalar, ierr); call check
  call ft_protect(2, line, ierr); call check
  call ft_protect(3, cube, ierr); call check
  call ft_protect(4, four, ierr); call check
  call ft_protect(5, single, ierr); call check
  call ft_protect(6, number, ierr); call check
  call ft_protect(7, numbers, ierr); call check
  call ft_protect(8, long, ierr); call check
  call ft_protect(9, wave, ierr); call check
  call ft_protect(10, flags, ierr); call check
  call ft_protect(11, field, ierr); call check
  call ft_protect(12, none, ierr); call check
  call ft_protect(13, line(1:9:2), ierr)
  if (ierr /= FT_ERR_ARGUMENT) error stop 'a section with gaps was accepted'
  call ft_unprotect(13, ierr); call check
  if (mode == 'write') then
    call ft_checkpoint(41, ierr); call check
    call ft_checkpoint(42_int64, ierr); call check
    call ft_checkpoint(42, ierr)
    if (ierr /= FT_ERR_VERSION) error stop 'a version was accepted twice'
    call ft_checkpoint(-1, ierr)
    if (ierr /= FT_ERR_ARGUMENT) error stop 'a negative version was accepted'
  else if (mode == 'long') then
    call ft_restore(short, ierr); call check
    if (short /= 42) error stop 'another version'
    call ft_checkpoint(3000000000_int64, ierr); call check
  else if (mode == 'short') then
    call ft_restore(short, ierr)
    if (ierr /= FT_ERR_ARGUMENT .or. short /= -1) error stop 'a version was cut'
    call ft_restore(version, ierr); call check
    if (version /= 3000000000_int64) error stop 'another version'
  else
    if (state /= FT_STATE_RESTARTED) error stop 'not restarted'
    call ft_restore(version, ierr); call check
    if (version /= 42) error stop 'another version'
    if (scalar /= 1 .or. any(line /= 2) .or. any(cube /= 3) .or. any(four /= 4) .or. any(single /= 5)) error stop 'reals'
    if (number /= 6 .or. any(numbers /= 7) .or. long /= 8) error stop 'integers'
    if (any(wave /= (9, 10)) .or. .not. all(flags) .or. any(field /= 11)) error stop 'others'
  end if
  block
    logical :: due
    call ft_checkpoint_due(due, ierr); call check
    if (.not. due) error stop 'not due'
  end block
  call ft_finalize(ierr); call check
  print '(a)', 'fine'
contains
  subroutine check
    if (ierr /= FT_OK) error stop ft_strerror(ierr)
  end subroutine
end program
