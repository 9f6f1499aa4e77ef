// Host and device memory of the driver: speed of host-located memory, of touching and registering, of maps; one range of device and host pages; tensor maps.
// nvcc -O2 -arch=sm_90 -o memory memory.cu -lcuda && ./memory
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <thread>
#include <chrono>
#include <sys/mman.h>
#define CK(x) do{CUresult r=(x); if(r){const char*s;cuGetErrorName(r,&s);printf("%s -> %d %s\n",#x,r,s);} }while(0)
static double now(){return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();}
static const size_t PG=2<<20;
CUdevice dev; CUcontext ctx;
CUmemAllocationProp prop(bool host){CUmemAllocationProp p={}; p.type=CU_MEM_ALLOCATION_TYPE_PINNED; p.location.type=host?CU_MEM_LOCATION_TYPE_HOST_NUMA:CU_MEM_LOCATION_TYPE_DEVICE; p.location.id=0; return p;}
__global__ void sum(const unsigned long long*p,size_t n,unsigned long long*o){unsigned long long s=0;for(size_t i=blockIdx.x*(size_t)blockDim.x+threadIdx.x;i<n;i+=(size_t)gridDim.x*blockDim.x)s+=p[i];atomicAdd(o,s);}
void hostcreate(int T,size_t each,int per){
  std::vector<std::vector<CUmemGenericAllocationHandle>> hs(T); double t=now();
  std::vector<std::thread> th; for(int i=0;i<T;i++)th.emplace_back([&,i]{cuCtxSetCurrent(ctx);auto p=prop(true);for(int k=0;k<per;k++){CUmemGenericAllocationHandle h;CUresult r=cuMemCreate(&h,each,&p,0);if(r){printf("create %d\n",r);return;}hs[i].push_back(h);}});
  for(auto&x:th)x.join(); double d=now()-t; printf("HOST_NUMA create T=%d each=%zuMiB per=%d: %.2f GB/s\n",T,each>>20,per,T*each*(double)per/d/1e9);
  t=now();for(auto&v:hs)for(auto h:v)cuMemRelease(h);printf("  release %.3fs\n",now()-t);
}
int main(){
  setbuf(stdout,0);
  cuInit(0);cuDeviceGet(&dev,0);cuDevicePrimaryCtxRetain(&ctx,dev);cuCtxSetCurrent(ctx);
  system("cat /sys/kernel/mm/transparent_hugepage/enabled; head -3 /proc/meminfo; nproc; uname -r; ulimit -l");
  hostcreate(1,1ull<<30,2); hostcreate(4,1ull<<30,1); hostcreate(8,1ull<<30,1); hostcreate(8,256ull<<20,4); hostcreate(16,512ull<<20,1); hostcreate(8,64ull<<20,16);
  // mmap + touch + register
  for(int T: {8,16}){ size_t N=8ull<<30; double t=now(); char*p=(char*)mmap(0,N,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE,-1,0); madvise(p,N,MADV_HUGEPAGE);
    std::vector<std::thread> th; for(int i=0;i<T;i++)th.emplace_back([&,i]{size_t per=N/T;for(size_t k=0;k<per;k+=4096)p[i*per+k]=0;}); for(auto&x:th)x.join(); double a=now()-t; t=now();
    for(size_t k=0;k<N;k+=1ull<<30)CK(cuMemHostRegister(p+k,1ull<<30,CU_MEMHOSTREGISTER_PORTABLE)); double b=now()-t; printf("mmap T=%d touch %.2f GB/s register(1 thread,1GiB chunks) %.2f GB/s\n",T,N/a/1e9,N/b/1e9);
    t=now(); for(size_t k=0;k<N;k+=1ull<<30)CK(cuMemHostUnregister(p+k)); printf(" unregister %.2fs\n",now()-t);
    t=now(); th.clear(); for(int i=0;i<8;i++)th.emplace_back([&,i]{cuCtxSetCurrent(ctx);CK(cuMemHostRegister(p+((size_t)i<<30),1ull<<30,CU_MEMHOSTREGISTER_PORTABLE));}); for(auto&x:th)x.join(); b=now()-t; printf(" register 8 threads %.2f GB/s\n",N/b/1e9);
    for(size_t k=0;k<N;k+=1ull<<30)cuMemHostUnregister(p+k); munmap(p,N);}
  // device handles
  int n=4096; std::vector<CUmemGenericAllocationHandle> h(n); auto p=prop(false); double t=now(); for(int i=0;i<n;i++)CK(cuMemCreate(&h[i],PG,&p,0)); printf("create %.1f us each\n",(now()-t)/n*1e6);
  CUdeviceptr va; CK(cuMemAddressReserve(&va,(size_t)n*PG,0,0,0)); t=now(); for(int i=0;i<n;i++)CK(cuMemMap(va+i*PG,PG,0,h[i],0)); printf("map %.1f us\n",(now()-t)/n*1e6);
  CUmemAccessDesc ad={}; ad.location.type=CU_MEM_LOCATION_TYPE_DEVICE; ad.location.id=0; ad.flags=CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  t=now(); CK(cuMemSetAccess(va,(size_t)n*PG,&ad,1)); printf("setaccess %.1f us/handle\n",(now()-t)/n*1e6);
  t=now(); CUresult r=cuMemUnmap(va,(size_t)(n/2)*PG); printf("unmap of 2048 mappings in one call rc=%d %.1f us/handle\n",r,(now()-t)/(n/2)*1e6);
  t=now(); for(int i=n/2;i<n;i++)CK(cuMemUnmap(va+i*PG,PG)); printf("unmap one by one %.1f us\n",(now()-t)/(n/2)*1e6);
  // parallel create+map+access
  { t=now(); std::vector<std::thread> th; for(int T=0;T<8;T++)th.emplace_back([&,T]{cuCtxSetCurrent(ctx);int a=T*n/8,b=(T+1)*n/8;for(int i=a;i<b;i++)CK(cuMemMap(va+i*PG,PG,0,h[i],0));CK(cuMemSetAccess(va+a*PG,(size_t)(b-a)*PG,&ad,1));}); for(auto&x:th)x.join(); printf("map+access with 8 threads %.1f us/handle\n",(now()-t)/n*1e6);}
  // view: alternate device and host pages
  { auto hp=prop(true); CUmemGenericAllocationHandle hh; size_t HB=256ull<<20; CK(cuMemCreate(&hh,HB,&hp,0)); CUdeviceptr v; CK(cuMemAddressReserve(&v,HB*2,0,0,0));
    for(size_t i=0;i<HB/PG;i++)CK(cuMemMap(v+i*PG,PG,0,h[i],0)); CK(cuMemSetAccess(v,HB,&ad,1));
    CK(cuMemMap(v+HB,HB,0,hh,0)); CUmemAccessDesc two[2]={ad,ad}; two[1].location.type=CU_MEM_LOCATION_TYPE_HOST_NUMA; two[1].location.id=0; CUresult r2=cuMemSetAccess(v+HB,HB,two,2); printf("view access host rc=%d\n",r2);
    // second mapping of host handle elsewhere (shadow address)
    CUdeviceptr s; CK(cuMemAddressReserve(&s,HB,0,0,0)); CK(cuMemMap(s,HB,0,hh,0)); CK(cuMemSetAccess(s,HB,two,2)); for(size_t i=0;i<HB/8;i++)((unsigned long long*)s)[i]=3;
    CK(cuMemsetD32(v,5,HB/4)); unsigned long long*o; CUdeviceptr od; CK(cuMemAlloc(&od,8)); o=(unsigned long long*)od; CK(cuMemsetD32(od,0,2));
    sum<<<256,256>>>((unsigned long long*)v,HB*2/8,o); unsigned long long res; CK(cuMemcpyDtoH(&res,od,8)); unsigned long long want=(HB/8)*3ull+(HB/8)*((5ull<<32)|5ull); printf("mixed view sum %s\n",res==want?"right":"WRONG");
    CUstream st; cuStreamCreate(&st,1); CUdeviceptr dst; cuMemAlloc(&dst,HB); for(int k=0;k<2;k++){t=now(); for(int i=0;i<8;i++)CK(cuMemcpyHtoDAsync(dst,(void*)s,HB,st)); cuStreamSynchronize(st);} printf("H2D from VMM host %.1f GB/s\n",8*HB/(now()-t)/1e9);
    t=now(); for(int i=0;i<8;i++)CK(cuMemcpyDtoHAsync((void*)s,dst,HB,st)); cuStreamSynchronize(st); printf("D2H to VMM host %.1f GB/s\n",8*HB/(now()-t)/1e9);
    t=now(); CUresult r3=cuMemcpyHtoDAsync(va,(void*)s,HB,st); cuStreamSynchronize(st); printf("H2D 256MiB into 2MiB handles rc=%d %.1f GB/s\n",r3,HB/(now()-t)/1e9);
    // registered memory device pointer equality
    char*q=(char*)mmap(0,PG,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); CK(cuMemHostRegister(q,PG,CU_MEMHOSTREGISTER_PORTABLE|CU_MEMHOSTREGISTER_DEVICEMAP)); CUdeviceptr dq; CK(cuMemHostGetDevicePointer(&dq,q,0)); printf("registered devptr same=%d\n",(char*)dq==q);
  }
  { CUtensorMap a,b; cuuint64_t dims[2]={4096,4096}, strides[1]={8192}; cuuint32_t box[2]={64,64}, es[2]={1,1};
    CK(cuTensorMapEncodeTiled(&a,CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,2,(void*)va,dims,strides,box,es,CU_TENSOR_MAP_INTERLEAVE_NONE,CU_TENSOR_MAP_SWIZZLE_128B,CU_TENSOR_MAP_L2_PROMOTION_NONE,CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    CK(cuTensorMapEncodeTiled(&b,CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,2,(void*)(va+PG*7+4096),dims,strides,box,es,CU_TENSOR_MAP_INTERLEAVE_NONE,CU_TENSOR_MAP_SWIZZLE_128B,CU_TENSOR_MAP_L2_PROMOTION_NONE,CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    unsigned long long*x=(unsigned long long*)&a,*y=(unsigned long long*)&b; printf("tensormap words differing:"); for(int i=0;i<16;i++)if(x[i]!=y[i])printf(" %d",i); printf(" word0 is address: %d %d\n",x[0]==va,y[0]==va+PG*7+4096); }
  printf("events: "); { CUevent e; double t=now(); for(int i=0;i<1000;i++){cuEventCreate(&e,CU_EVENT_DISABLE_TIMING);} printf("create %.2f us\n",(now()-t)*1e3);}
  return 0; }
