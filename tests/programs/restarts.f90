! restarts: as restarts.c, with Fortran's own files: stream and unformatted. The place is in restarts_gate.c.
program restarts
  use mpi
  use iso_c_binding
  implicit none
  interface
    subroutine reach(name, rank) bind(c)
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: rank
    end subroutine
  end interface
  integer, parameter :: words = 4096
  double precision :: field(words), back(words)
  character(len=4096) :: directory, world, how, argument
  integer :: rank, step, unit, error, i, state
  logical :: there

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call get_environment_variable("FT_CHECKPOINT_DIR", directory)
  call get_environment_variable("FT_WORLD", world)
  call get_command_argument(1, how)
  call get_command_argument(2, argument)
  do step = 1, 2
    field = [(step * 1000d0 + i, i = 1, words)]
    if (rank == 0) then
      if (world == "1") then
        open(newunit=unit, file=name(step), access=merge("stream    ", "sequential", how == "stream"), &
             form="unformatted", status="replace", action="write")
        write(unit) field(:words / 2)
        flush(unit)
        if (step == 2) call reach("writer.half" // c_null_char, rank)
        write(unit) field(words / 2 + 1:)
        close(unit)
      else
        inquire(file=name(step), exist=there)
        if (there) then
          open(newunit=unit, file=name(step), access=merge("stream    ", "sequential", how == "stream"), &
               form="unformatted", status="old", action="read")
          read(unit, iostat=state) back(:words / 2)
          if (state == 0) read(unit, iostat=state) back(words / 2 + 1:)
          close(unit)
          if (state /= 0 .or. any(back /= field)) call MPI_Abort(MPI_COMM_WORLD, 71, error)
          print "('found ', i0)", step
        end if
      end if
    end if
    call MPI_Barrier(MPI_COMM_WORLD, error)
  end do
  if (world == "1" .and. argument /= "") call reach("writer.done" // c_null_char, rank)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  call MPI_Finalize(error)

contains

  function name(step)
    integer, intent(in) :: step
    character(len=4200) :: name
    write(name, "(a, '/step.', i0)") trim(directory), step
  end function
end program
