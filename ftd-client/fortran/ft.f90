! Fortran interface of ftd's client library. The contract of each call is in ft.h. Every subroutine takes an optional last
! argument ierr: FT_OK or one of the codes below. It may have 32 or 64 bits, as may state and version (-fdefault-integer-8, -i8);
! compile this file with the same options as the program.
!
!     use ft
!     call ft_init(state)
!     call ft_protect(1, step)
!     call ft_protect(2, field)
!     if (state == FT_STATE_RESTARTED) call ft_restore(version)
!
! Protected variables must have the TARGET (or POINTER) attribute, or be ALLOCATABLE or SAVEd ones with it, and must stay
! where they are: protect an array again after it was reallocated. Array sections with gaps are FT_ERR_ARGUMENT.
module ft
  use, intrinsic :: iso_c_binding, only: c_int, c_int8_t, c_int16_t, c_int32_t, c_int64_t, c_size_t, c_float, c_double, &
    c_ptr, c_loc, c_null_ptr, c_char, c_f_pointer, c_associated, c_funptr, c_funloc
  use, intrinsic :: iso_fortran_env, only: output_unit
  implicit none
  private

  integer(c_int), parameter, public :: FT_OK = 0, FT_ERR_NONE = 1, FT_ERR_ORDER = 2, FT_ERR_ARGUMENT = 3, FT_ERR_SIZE = 4, &
    FT_ERR_VERSION = 5, FT_ERR_MEMORY = 6, FT_ERR_TIMEOUT = 7, FT_ERR_AGENT = 8, FT_ERR_MIXED = 9, FT_ERR_REFUSED = 10, &
    FT_ERR_ARENA = 11, FT_ERR_CHILD = 12, FT_ERR_INTERNAL = 13
  integer(c_int), parameter, public :: FT_STATE_NEW = 0, FT_STATE_RESTARTED = 1, FT_STATE_SURVIVOR = 2, FT_STATE_SPARE = 3

  public :: ft_init, ft_protect, ft_unprotect, ft_checkpoint, ft_on_checkpoint, ft_restore, ft_checkpoint_due, ft_finalize, &
    ft_strerror, ft_call

  ! What ft_on_checkpoint takes: a subroutine that empties the program's own output buffers (FLUSH of its units, say).
  abstract interface
    subroutine ft_call(argument) bind(C)
      import :: c_ptr
      type(c_ptr), value :: argument
    end subroutine
  end interface

  interface
    function c_init(state) bind(C, name="ft_init") result(code)
      import :: c_int
      integer(c_int), intent(out) :: state
      integer(c_int) :: code
    end function
    function c_protect(id, pointer, bytes) bind(C, name="ft_protect") result(code)
      import :: c_int, c_ptr, c_size_t
      integer(c_int), value :: id
      type(c_ptr), value :: pointer
      integer(c_size_t), value :: bytes
      integer(c_int) :: code
    end function
    function c_checkpoint(version) bind(C, name="ft_checkpoint") result(code)
      import :: c_int, c_int64_t
      integer(c_int64_t), value :: version
      integer(c_int) :: code
    end function
    function c_on_checkpoint(call, argument) bind(C, name="ft_on_checkpoint") result(code)
      import :: c_int, c_ptr, c_funptr
      type(c_funptr), value :: call
      type(c_ptr), value :: argument
      integer(c_int) :: code
    end function
    function c_restore(version) bind(C, name="ft_restore") result(code)
      import :: c_int, c_int64_t
      integer(c_int64_t), intent(out) :: version
      integer(c_int) :: code
    end function
    function c_checkpoint_due(yes) bind(C, name="ft_checkpoint_due") result(code)
      import :: c_int
      integer(c_int), intent(out) :: yes
      integer(c_int) :: code
    end function
    function c_finalize() bind(C, name="ft_finalize") result(code)
      import :: c_int
      integer(c_int) :: code
    end function
    function c_strerror(code) bind(C, name="ft_strerror") result(text)
      import :: c_int, c_ptr
      integer(c_int), value :: code
      type(c_ptr) :: text
    end function
    pure function c_strlen(text) bind(C, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

  ! Scalars and arrays of any rank; those of a derived type by their address, when the type has no pointers and no allocatable
  ! components: call ft_protect(id, c_loc(a), size(a) * c_sizeof(a(1))).
  interface ft_protect
    module procedure protect_address, protect_address_wide, &
      protect_real_32, protect_real_32_wide, &
      protect_real_64, protect_real_64_wide, &
      protect_complex_32, protect_complex_32_wide, &
      protect_complex_64, protect_complex_64_wide, &
      protect_integer_8, protect_integer_8_wide, &
      protect_integer_16, protect_integer_16_wide, &
      protect_integer_32, protect_integer_32_wide, &
      protect_integer_64, protect_integer_64_wide, &
      protect_logical_default, protect_logical_default_wide
  end interface
  ! Versions are integers of 32 or 64 bits. A version that was restored and does not fit is FT_ERR_ARGUMENT, and -1.
  interface ft_checkpoint
    module procedure checkpoint_32, checkpoint_64, checkpoint_32_wide, checkpoint_64_wide
  end interface
  interface ft_restore
    module procedure restore_32, restore_64, restore_32_wide, restore_64_wide
  end interface
  ! Those whose names end in _wide take an ierr of 64 bits.
  interface ft_init
    module procedure init_32, init_64, init_32_wide, init_64_wide
  end interface
  interface ft_unprotect
    module procedure unprotect, unprotect_wide
  end interface
  interface ft_on_checkpoint
    module procedure on_checkpoint, on_checkpoint_wide, on_checkpoint_bare_wide
  end interface
  interface ft_checkpoint_due
    module procedure checkpoint_due, checkpoint_due_wide
  end interface
  interface ft_finalize
    module procedure finalize, finalize_wide
  end interface
  interface ft_strerror
    module procedure strerror_32, strerror_64
  end interface

contains

  subroutine init_32(state, ierr)
    integer(c_int), intent(out) :: state
    integer(c_int), intent(out), optional :: ierr
    integer(c_int) :: ignored
    ignored = c_on_checkpoint(c_funloc(empty_output_unit), c_null_ptr)
    state = FT_STATE_NEW
    call give(c_init(state), ierr)
  end subroutine

  subroutine init_64(state, ierr)
    integer(c_int64_t), intent(out) :: state
    integer(c_int), intent(out), optional :: ierr
    integer(c_int) :: short
    call init_32(short, ierr)
    state = short
  end subroutine

  subroutine init_32_wide(state, ierr)
    integer(c_int), intent(out) :: state
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call init_32(state, code)
    ierr = code
  end subroutine

  subroutine init_64_wide(state, ierr)
    integer(c_int64_t), intent(out) :: state
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call init_64(state, code)
    ierr = code
  end subroutine

  subroutine on_checkpoint(call, argument, ierr)
    procedure(ft_call) :: call
    type(c_ptr), intent(in), optional :: argument
    integer(c_int), intent(out), optional :: ierr
    type(c_ptr) :: given
    given = c_null_ptr
    if (present(argument)) given = argument
    call give(c_on_checkpoint(c_funloc(call), given), ierr)
  end subroutine

  subroutine on_checkpoint_wide(call, argument, ierr)
    procedure(ft_call) :: call
    type(c_ptr), intent(in) :: argument
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call on_checkpoint(call, argument, code)
    ierr = code
  end subroutine

  subroutine on_checkpoint_bare_wide(call, ierr)
    procedure(ft_call) :: call
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call on_checkpoint(call, ierr=code)
    ierr = code
  end subroutine

  ! What was printed before a version is out before the version counts. It is called in every checkpoint.
  subroutine empty_output_unit(argument) bind(C, name="")
    type(c_ptr), value :: argument
    integer :: ignored
    if (.not. c_associated(argument)) flush (output_unit, iostat=ignored)
  end subroutine

  ! Takes a region out.
  subroutine unprotect(id, ierr)
    integer, intent(in) :: id
    integer(c_int), intent(out), optional :: ierr
    call give(c_protect(int(id, c_int), c_null_ptr, 0_c_size_t), ierr)
  end subroutine

  subroutine unprotect_wide(id, ierr)
    integer, intent(in) :: id
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call unprotect(id, code)
    ierr = code
  end subroutine

  subroutine checkpoint_32(version, ierr)
    integer(c_int32_t), intent(in) :: version
    integer(c_int), intent(out), optional :: ierr
    call checkpoint_64(int(version, c_int64_t), ierr)
  end subroutine

  subroutine checkpoint_32_wide(version, ierr)
    integer(c_int32_t), intent(in) :: version
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call checkpoint_32(version, code)
    ierr = code
  end subroutine

  subroutine checkpoint_64(version, ierr)
    integer(c_int64_t), intent(in) :: version
    integer(c_int), intent(out), optional :: ierr
    integer(c_int) :: ignored
    ! C's versions have no sign: as one of them this would be greater than all others.
    if (version < 0) then
      write (0, '(a,i0,a)') 'ftd: version ', version, ' is negative: versions begin at 0. Nothing was written'
      call give(FT_ERR_ARGUMENT, ierr)
      return
    end if
    ! Where a C part of the program called ft_init, nobody has said so yet.
    ignored = c_on_checkpoint(c_funloc(empty_output_unit), c_null_ptr)
    call give(c_checkpoint(version), ierr)
  end subroutine

  subroutine checkpoint_64_wide(version, ierr)
    integer(c_int64_t), intent(in) :: version
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call checkpoint_64(version, code)
    ierr = code
  end subroutine

  subroutine restore_32(version, ierr)
    integer(c_int32_t), intent(out) :: version
    integer(c_int), intent(out), optional :: ierr
    integer(c_int64_t) :: found
    integer(c_int) :: code
    found = 0
    code = c_restore(found)
    version = -1
    if (found >= 0 .and. found <= huge(version)) then
      version = int(found, c_int32_t)
    else if (code == FT_OK) then
      write (0, '(a,i0,a)') 'ftd: version ', found, ' does not fit into the integer of 32 bits that ft_restore was given: declare &
        &it as integer(int64). The regions are restored'
      code = FT_ERR_ARGUMENT
    end if
    call give(code, ierr)
  end subroutine

  subroutine restore_32_wide(version, ierr)
    integer(c_int32_t), intent(out) :: version
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call restore_32(version, code)
    ierr = code
  end subroutine

  subroutine restore_64(version, ierr)
    integer(c_int64_t), intent(out) :: version
    integer(c_int), intent(out), optional :: ierr
    version = 0
    call give(c_restore(version), ierr)
  end subroutine

  subroutine restore_64_wide(version, ierr)
    integer(c_int64_t), intent(out) :: version
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call restore_64(version, code)
    ierr = code
  end subroutine

  subroutine checkpoint_due(yes, ierr)
    logical, intent(out) :: yes
    integer(c_int), intent(out), optional :: ierr
    integer(c_int) :: due
    due = 0
    call give(c_checkpoint_due(due), ierr)
    yes = due /= 0
  end subroutine

  subroutine checkpoint_due_wide(yes, ierr)
    logical, intent(out) :: yes
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call checkpoint_due(yes, code)
    ierr = code
  end subroutine

  subroutine finalize(ierr)
    integer(c_int), intent(out), optional :: ierr
    call give(c_finalize(), ierr)
  end subroutine

  subroutine finalize_wide(ierr)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call finalize(code)
    ierr = code
  end subroutine

  function strerror_32(code) result(text)
    integer(c_int), intent(in) :: code
    character(len=:), allocatable :: text
    type(c_ptr) :: c_text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    c_text = c_strerror(code)
    call c_f_pointer(c_text, letters, [c_strlen(c_text)])
    allocate(character(len=size(letters)) :: text)
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  function strerror_64(code) result(text)
    integer(c_int64_t), intent(in) :: code
    character(len=:), allocatable :: text
    text = strerror_32(int(code, c_int))
  end function

  subroutine give(code, ierr)
    integer(c_int), intent(in) :: code
    integer(c_int), intent(out), optional :: ierr
    if (present(ierr)) ierr = code
  end subroutine

  ! A null pointer with bytes makes the library refuse the region and say so.
  subroutine protect_bytes(id, address, contiguous, bytes, ierr)
    integer, intent(in) :: id
    type(c_ptr), intent(in) :: address
    logical, intent(in) :: contiguous
    integer(c_size_t), intent(in) :: bytes
    integer(c_int), intent(out), optional :: ierr
    if (.not. contiguous) then
      write (0, '(a,i0,a)') 'ftd: region ', id, ' is an array section with gaps: protect whole arrays'
      call give(FT_ERR_ARGUMENT, ierr)
    else
      call give(c_protect(int(id, c_int), address, bytes), ierr)
    end if
  end subroutine

  ! No bytes take the region out, as in C.
  subroutine protect_address(id, address, bytes, ierr)
    integer, intent(in) :: id
    type(c_ptr), intent(in) :: address
    integer(c_size_t), intent(in) :: bytes
    integer(c_int), intent(out), optional :: ierr
    if (bytes == 0) then
      call unprotect(id, ierr)
    else
      call protect_bytes(id, address, .true., bytes, ierr)
    end if
  end subroutine

  subroutine protect_address_wide(id, address, bytes, ierr)
    integer, intent(in) :: id
    type(c_ptr), intent(in) :: address
    integer(c_size_t), intent(in) :: bytes
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_address(id, address, bytes, code)
    ierr = code
  end subroutine

  subroutine protect_real_32(id, region, ierr)
    integer, intent(in) :: id
    real(c_float), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_real_32_wide(id, region, ierr)
    integer, intent(in) :: id
    real(c_float), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_real_32(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_real_64(id, region, ierr)
    integer, intent(in) :: id
    real(c_double), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_real_64_wide(id, region, ierr)
    integer, intent(in) :: id
    real(c_double), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_real_64(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_complex_32(id, region, ierr)
    integer, intent(in) :: id
    complex(c_float), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_complex_32_wide(id, region, ierr)
    integer, intent(in) :: id
    complex(c_float), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_complex_32(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_complex_64(id, region, ierr)
    integer, intent(in) :: id
    complex(c_double), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_complex_64_wide(id, region, ierr)
    integer, intent(in) :: id
    complex(c_double), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_complex_64(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_integer_8(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int8_t), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_integer_8_wide(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int8_t), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_integer_8(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_integer_16(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int16_t), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_integer_16_wide(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int16_t), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_integer_16(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_integer_32(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int32_t), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_integer_32_wide(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int32_t), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_integer_32(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_integer_64(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int64_t), intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_integer_64_wide(id, region, ierr)
    integer, intent(in) :: id
    integer(c_int64_t), intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_integer_64(id, region, code)
    ierr = code
  end subroutine

  subroutine protect_logical_default(id, region, ierr)
    integer, intent(in) :: id
    logical, intent(in), target :: region(..)
    integer(c_int), intent(out), optional :: ierr
    call protect_bytes(id, address_of(), is_contiguous(region), &
      size(region, kind=c_size_t) * (storage_size(region, kind=c_size_t) / 8), ierr)
  contains
    function address_of() result(address)
      type(c_ptr) :: address
      address = c_null_ptr
      if (size(region) > 0) address = c_loc(region)
    end function
  end subroutine

  subroutine protect_logical_default_wide(id, region, ierr)
    integer, intent(in) :: id
    logical, intent(in), target :: region(..)
    integer(c_int64_t), intent(out) :: ierr
    integer(c_int) :: code
    call protect_logical_default(id, region, code)
    ierr = code
  end subroutine

end module ft
