! wide: every call of the module with integers of 32 and of 64 bits, whichever is the default kind. It dies after its checkpoints.
program wide
  use ft
  use, intrinsic :: iso_c_binding, only: c_int, c_int64_t, c_ptr, c_null_ptr, c_loc, c_sizeof
  implicit none
  integer :: state, ierr, version
  integer(c_int) :: short
  integer(8) :: long
  logical :: due
  real, target :: field(10) = 1
  logical, target :: flag = .true.
  integer, target :: counter = 3
  call ft_init(state, ierr)
  if (ierr /= FT_OK) stop 3
  call ft_on_checkpoint(empty, ierr=ierr)
  call ft_on_checkpoint(empty)
  call ft_on_checkpoint(empty, c_null_ptr, ierr)
  call ft_protect(1, counter, ierr)
  call ft_protect(2, field, ierr)
  call ft_protect(4, c_loc(field), size(field) * c_sizeof(field(1)), ierr)
  call ft_protect(4, c_loc(field), 0 * c_sizeof(field(1)), long)
  call ft_protect(3, flag)
  call ft_protect(3, flag, short)
  call ft_protect(3, flag, long)
  call ft_restore(version, ierr)
  print '(3(a,i0),2a)', 'state ', state, ' version ', version, ' counter ', counter, ' ', ft_strerror(ierr)
  if (short /= FT_OK .or. long /= FT_OK .or. ft_strerror(short) /= ft_strerror(long)) stop 6
  if (state == FT_STATE_NEW) then
    counter = 7
    call ft_checkpoint(7, ierr)
    if (ierr /= FT_OK) stop 4
    call ft_checkpoint(8_8, short)
    call ft_checkpoint(9_4, long)
    if (short /= FT_OK .or. long /= FT_OK) stop 7
    call ft_checkpoint_due(due, ierr)
    call ft_checkpoint_due(due)
    short = c_raise(9_c_int)
  end if
  call ft_unprotect(2, ierr)
  call ft_finalize(ierr)
  if (ierr /= FT_OK) stop 5
  print '(a,i0)', 'end ', counter
contains
  subroutine empty(argument) bind(C)
    type(c_ptr), value :: argument
  end subroutine
  function c_raise(signal) result(code)
    integer(c_int), intent(in) :: signal
    integer(c_int) :: code
    interface
      function raise(signal) bind(C, name="raise") result(code)
        import :: c_int
        integer(c_int), value :: signal
        integer(c_int) :: code
      end function
    end interface
    code = raise(signal)
  end function
end program
