! apionly: as apionly.c, in Fortran.
program apionly
  use ft
  implicit none
  integer :: rank, state
  integer, target :: step
  integer(8) :: version
  character(len=16) :: word

  call get_environment_variable('FT_RANK', word)
  read (word, *) rank
  step = 0
  call ft_init(state)
  call ft_protect(0, step)
  if (state == FT_STATE_RESTARTED) call ft_restore(version)
  do while (step < 15)
    step = step + 1
    print '(a,i0,a,i0)', 'rank ', rank, ' step ', step
    if (mod(step, 4) == 0) call ft_checkpoint(step)
  end do
  print '(a,i0,a)', 'rank ', rank, ' done'
  call ft_finalize()
end program apionly
